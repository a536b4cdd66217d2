"""A fault on the way from the engine to the trainer: a healthy trace in, what the consumer holds out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from moeinspect.errors import MoeinspectError
from moeinspect.trace.schema import Trace

Apply = Callable[[Trace, np.random.Generator], Trace]
"""A healthy trace and a source of randomness (which requests, which rows) to what the consumer holds."""


@dataclass(frozen=True, slots=True)
class TransportFault:
    """One fault of the catalogue's part C.

    `apply` takes a healthy trace and a source of randomness (which requests, which rows) and returns the
    trace that an importer would hand on; it raises `NoEffectError` where the trace cannot show the fault.
    """

    name: str
    upstream: str
    """Issues and pull requests in which it was seen."""
    apply: Apply
    variants: Mapping[str, Apply] = field(default_factory=dict)
    """The shapes in which it was seen, by name; `apply` is one of them."""

    @property
    def shapes(self) -> Mapping[str, Apply]:
        """The variants, or `apply` alone under an empty name."""
        return self.variants or {"": self.apply}


def fault_of_variants(name: str, upstream: str, variants: Mapping[str, Apply]) -> TransportFault:
    """A fault whose `apply` draws one of the variants that the trace can show."""

    def apply(trace: Trace, rng: np.random.Generator) -> Trace:
        names = list(variants)
        drawn = [names[place] for place in rng.permutation(len(names))]
        for one in drawn[:-1]:
            try:
                return variants[one](trace, rng)
            except NoEffectError:
                continue
        return variants[drawn[-1]](trace, rng)

    return TransportFault(name, upstream, apply, variants)


class NoEffectError(MoeinspectError):
    """The trace has nothing that this fault could change."""

    def __init__(self, name: str, why: str, hint: str = "") -> None:
        super().__init__(f"{name} does nothing here: {why}", hint)
