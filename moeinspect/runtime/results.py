"""From a request and its collected rows to the record that leaves the runtime."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moeinspect.runtime.capture.collector import CollectedRows
from moeinspect.runtime.records import FinishedRequest, PromptRequest


def finished_request(
    prompt: PromptRequest,
    output_ids: NDArray[np.int32],
    finish_reason: str,
    rows: CollectedRows,
    *,
    num_drafted: int,
    num_accepted: int,
) -> FinishedRequest:
    """One ended request with its rows."""
    return FinishedRequest(
        id=prompt.id,
        prompt_ids=np.asarray(prompt.prompt_ids, dtype=np.int32),
        output_ids=output_ids,
        finish_reason=finish_reason,
        expert_ids=rows.expert_ids,
        origin=rows.origin,
        worker=rows.worker,
        step=rows.step,
        slot=rows.slot,
        weights=rows.weights,
        margin=rows.margin,
        num_drafted=num_drafted,
        num_accepted=num_accepted,
    )
