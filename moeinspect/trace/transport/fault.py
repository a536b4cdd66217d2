"""A fault on the way from the engine to the trainer: a healthy trace in, what the consumer holds out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from moeinspect.errors import MoeinspectError
from moeinspect.trace.schema import Trace


@dataclass(frozen=True, slots=True)
class TransportFault:
    """One fault of the catalogue's part C.

    `apply` takes a healthy trace and a source of randomness (which requests, which rows) and returns the
    trace that an importer would hand on; it raises `NoEffectError` where the trace cannot show the fault.
    """

    name: str
    upstream: str
    """Issues and pull requests in which it was seen."""
    apply: Callable[[Trace, np.random.Generator], Trace]


class NoEffectError(MoeinspectError):
    """The trace has nothing that this fault could change."""

    def __init__(self, name: str, why: str, hint: str = "") -> None:
        super().__init__(f"{name} does nothing here: {why}", hint)
