"""Makes the draft that a run asks for."""

from __future__ import annotations

from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.faults import ActiveFaults
from moeinspect.runtime.spec.draft_length import AdaptiveLength, DraftLength
from moeinspect.runtime.spec.draft_model import DraftModel
from moeinspect.runtime.spec.ngram import Ngram
from moeinspect.runtime.spec.proposer import Proposer
from moeinspect.runtime.worker.device_state import DeviceState
from moeinspect.runtime.worker.forward_runner import ForwardRunner


def make_proposer(
    config: RunConfig, forwards: ForwardRunner | None, state: DeviceState, faults: ActiveFaults
) -> Proposer | None:
    """The run's draft; `forwards` are those of the draft model, if there is one."""
    if config.draft is None:
        return None
    length = (AdaptiveLength if config.adaptive_draft else DraftLength)(config.num_draft_tokens)
    if forwards is None:
        return Ngram(state, length, config.draft_topk)
    return DraftModel(
        forwards,
        state,
        length,
        config.draft_topk,
        delayed_copy=config.overlap,
        faults=faults,
    )
