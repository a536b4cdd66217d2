"""Known faults behind the engine, as changes of a healthy trace: what the trainer's side then holds.

Each is made as upstream made it (the same cast, join, pad or slice), not by editing rows until they look
wrong. The result is what an importer would hand on: tokens, `start_pos`, numbers of rows and validity are
those that the consumer has.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moeinspect.errors import UsageError
from moeinspect.trace.schema import Trace
from moeinspect.trace.transport.axes import LAYER_SHIFT, ROW_SHIFT
from moeinspect.trace.transport.fault import NoEffectError, TransportFault
from moeinspect.trace.transport.filler import FILLER_AS_REAL, MISSING_REQUEST, PARTIAL_SENTINEL
from moeinspect.trace.transport.ids import UINT8_WRAP
from moeinspect.trace.transport.joins import DOUBLE_CONCAT, TURN_GAP
from moeinspect.trace.transport.layers import MTP_ALIAS
from moeinspect.trace.transport.packing import CP_SLICE
from moeinspect.trace.transport.replay import REPLAY_NOOP
from moeinspect.trace.transport.truncation import PROMPT_TRUNCATED

__all__ = ["TRANSPORT_FAULTS", "NoEffectError", "TransportFault", "apply_transport_fault"]

TRANSPORT_FAULTS: dict[str, TransportFault] = {
    fault.name: fault
    for fault in (
        UINT8_WRAP,
        DOUBLE_CONCAT,
        PARTIAL_SENTINEL,
        FILLER_AS_REAL,
        MISSING_REQUEST,
        TURN_GAP,
        MTP_ALIAS,
        LAYER_SHIFT,
        ROW_SHIFT,
        REPLAY_NOOP,
        CP_SLICE,
        PROMPT_TRUNCATED,
    )
}
"""By name of the fault catalogue."""


def apply_transport_fault(name: str, trace: Trace, seed: int = 0) -> Trace:
    """`trace` as it is after the fault; `injected_faults` names it, which no analysis reads.

    Raises:
        UsageError: no fault has this name.
        NoEffectError: the trace cannot show the fault.
    """
    fault = TRANSPORT_FAULTS.get(name)
    if fault is None:
        known = ", ".join(TRANSPORT_FAULTS)
        raise UsageError(f"there is no transport fault {name!r}", f"the known ones are {known}")
    changed = fault.apply(trace, np.random.default_rng(seed))
    return replace(changed, run=replace(changed.run, injected_faults=(*trace.run.injected_faults, name)))
