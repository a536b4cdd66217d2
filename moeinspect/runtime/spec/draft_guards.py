"""Keeps a draft worker out of the capturer (the guards of SGLang PR 26980), and the faults that do not."""

from __future__ import annotations

from moeinspect.runtime.capture.gate import disable_routed_experts_capture_for_draft
from moeinspect.runtime.faults import (
    BYPASS_DROPS_FLAG,
    DRAFT_CAPTURE,
    DRAFT_OPTOUT_LATE,
    UNGATED_BACKEND,
    ActiveFaults,
)
from moeinspect.runtime.worker.forward_runner import ForwardRunner


def initialize_draft(forwards: ForwardRunner, faults: ActiveFaults) -> None:
    """Opts the draft's layers out, then builds its backends, then captures its graphs from them.

    The order matters: a graph keeps the configuration that it was captured with, so an opt-out that comes
    after it (fault `draft-optout-late`) reaches eager forwards alone.
    """
    if DRAFT_CAPTURE not in faults and DRAFT_OPTOUT_LATE not in faults:
        disable_routed_experts_capture_for_draft(forwards.model)
    forwards.initialize()
    if DRAFT_OPTOUT_LATE in faults:
        disable_routed_experts_capture_for_draft(forwards.model)


def ends_captured(forwards: ForwardRunner, faults: ActiveFaults) -> bool:
    """Whether a draft's forwards end as the target's do, which stores its choices under its slots.

    They never do in a healthy run. A draft layer that writes the shared device buffer changes nothing by
    itself, since the target's rows were taken out before: so each fault that lets it write lifts this guard,
    too, where the fault takes effect.
    """
    fused = forwards.backend == "bypass"
    return (
        DRAFT_CAPTURE in faults
        or (DRAFT_OPTOUT_LATE in faults and forwards.replays_graphs)
        or (fused and (BYPASS_DROPS_FLAG in faults or UNGATED_BACKEND in faults))
    )
