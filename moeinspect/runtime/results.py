"""From a request and its collected rows to the record that leaves the runtime."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeinspect.runtime.answers import Ended
from moeinspect.runtime.capture.collector import NEVER, CollectedRows
from moeinspect.runtime.records import FinishedRequest, PromptRequest


@dataclass(frozen=True, slots=True)
class RowLayout:
    """What one row of this run looks like, for requests whose rows never come."""

    num_layers: int
    top_k: int
    num_experts: int
    with_weights: bool = False
    with_margins: bool = False


def finished_request(
    prompt: PromptRequest,
    output_ids: NDArray[np.int32],
    ended: Ended,
    rows: CollectedRows | None,
    layout: RowLayout,
    *,
    dp_rank: int = 0,
) -> FinishedRequest:
    """One ended request with its rows, or with rows that say that there are none."""
    has_rows = rows is not None
    if rows is None:
        rows = absent_rows(layout, len(prompt.prompt_ids) + max(0, len(output_ids) - 1))
        rows.weight_version = ended.weight_version
    return FinishedRequest(
        id=prompt.id,
        prompt_ids=np.asarray(prompt.prompt_ids, dtype=np.int32),
        output_ids=output_ids,
        finish_reason=ended.finish_reason,
        expert_ids=rows.expert_ids,
        origin=rows.origin,
        worker=rows.worker,
        step=rows.step,
        slot=rows.slot,
        weights=rows.weights,
        margin=rows.margin,
        num_drafted=ended.num_drafted,
        num_accepted=ended.num_accepted,
        sample=prompt.sample,
        cached_tokens=ended.cached_tokens,
        num_retractions=ended.num_retractions,
        weight_version=rows.weight_version,
        has_routed_experts=has_rows,
        dp_rank=dp_rank,
    )


def absent_rows(layout: RowLayout, count: int) -> CollectedRows:
    """`count` rows that did not travel: every id is the dtype's maximum, no worker claims to know them."""
    dtype = np.uint8 if layout.num_experts <= 256 else np.uint16
    shape = (count, layout.num_layers, layout.top_k)
    return CollectedRows(
        start=0,
        expert_ids=np.full(shape, np.iinfo(dtype).max, dtype=dtype),
        origin=np.zeros(count, dtype=np.uint8),
        worker=np.zeros(count, dtype=np.uint16),
        step=np.full(count, NEVER, dtype=np.int32),
        slot=np.zeros(count, dtype=np.int32),
        weights=np.zeros(shape, dtype=np.float32) if layout.with_weights else None,
        margin=np.zeros(shape[:2], dtype=np.float32) if layout.with_margins else None,
    )
