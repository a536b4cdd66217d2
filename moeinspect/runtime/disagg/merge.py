"""Puts the prompt rows of the prefill worker before the output rows of the decode worker."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeinspect.errors import EngineError
from moeinspect.runtime.capture.collector import CollectedRows


def merge_rows(
    request_id: str, prefill: CollectedRows, decode: CollectedRows, prompt_len: int, output_len: int
) -> CollectedRows:
    """Rows [0, P) of `prefill` followed by rows [P, P + N - 1) of `decode`.

    Merged by row, with starts, lengths and shapes checked: splicing bytes by their length alone shifts
    every row from the seam on when the two sides disagree.

    Raises:
        EngineError: the two sides do not fit together.
    """
    where = f"request {request_id!r}: the rows of the two workers do not fit together"
    if prefill.start != 0 or len(prefill) != prompt_len:
        raise EngineError(f"{where}: prefill returned {_span(prefill)}, not [0, {prompt_len})")
    end = prompt_len + output_len - 1
    if decode.start != prompt_len or decode.start + len(decode) != end:
        raise EngineError(f"{where}: decode returned {_span(decode)}, not [{prompt_len}, {end})")
    if prefill.expert_ids.shape[1:] != decode.expert_ids.shape[1:]:
        raise EngineError(
            f"{where}: prefill has {prefill.expert_ids.shape[1:]} ids a row, "
            f"decode {decode.expert_ids.shape[1:]}"
        )
    if prefill.expert_ids.dtype != decode.expert_ids.dtype:
        raise EngineError(f"{where}: {prefill.expert_ids.dtype} and {decode.expert_ids.dtype} ids")
    return CollectedRows(
        start=0,
        expert_ids=np.concatenate([prefill.expert_ids, decode.expert_ids]),
        origin=np.concatenate([prefill.origin, decode.origin]),
        worker=np.concatenate([prefill.worker, decode.worker]),
        step=np.concatenate([prefill.step, decode.step]),
        slot=np.concatenate([prefill.slot, decode.slot]),
        weights=_join(where, "weights", prefill.weights, decode.weights),
        margin=_join(where, "margins", prefill.margin, decode.margin),
    )


def _join(
    where: str, what: str, prefill: NDArray[Any] | None, decode: NDArray[Any] | None
) -> NDArray[Any] | None:
    if prefill is None and decode is None:
        return None
    if prefill is None or decode is None:
        raise EngineError(f"{where}: only one of them returned {what}")
    return np.concatenate([prefill, decode])


def _span(rows: CollectedRows) -> str:
    return f"[{rows.start}, {rows.start + len(rows)})"
