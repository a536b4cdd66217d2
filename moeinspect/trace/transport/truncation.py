"""Prompts cut from the left whose rows were not cut with them: `prompt-truncated`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np

from moeinspect.trace.schema import RequestRecord, Trace
from moeinspect.trace.transport.fault import NoEffectError, fault_of_variants
from moeinspect.trace.transport.records import records_of, rows_taken, trace_of

Rows = Literal["whole", "tail", "twice", "cut"]
"""What becomes of the rows: none is cut; as many as tokens are cut, at the other end; they are cut twice; or
they are cut as the tokens are, which is right."""


def prompts_truncated(trace: Trace, max_prompt_len: int, rows: Rows) -> Trace:
    """Prompts of more than `max_prompt_len` tokens lose their first ones (verl#6089).

    Raises:
        NoEffectError: no prompt is longer, or none has rows of the tokens that it loses.
    """
    records = records_of(trace)
    lost = [max(0, len(record.prompt_ids) - max(1, max_prompt_len)) for record in records]
    if not any(cut > record.start_pos for cut, record in zip(lost, records, strict=True)):
        raise NoEffectError(
            "prompt-truncated", f"no prompt has more than {max_prompt_len} tokens with rows of their own"
        )
    return trace_of(trace, [_truncated(record, cut, rows) for record, cut in zip(records, lost, strict=True)])


def _truncated(record: RequestRecord, cut: int, rows: Rows) -> RequestRecord:
    """The request without its first `cut` tokens; its first row is that of position 0 again."""
    if not cut:
        return record
    # Rows before `start_pos` were never there, so that fewer than `cut` belong to the tokens that are lost.
    gone = max(0, cut - record.start_pos)
    count = len(record.expert_ids)
    kept = {
        "whole": np.arange(count),
        "tail": np.arange(max(0, count - gone)),
        "twice": np.arange(min(count, 2 * gone), count),
        "cut": np.arange(min(count, gone), count),
    }[rows]
    return replace(
        rows_taken(record, kept),
        prompt_ids=record.prompt_ids[cut:],
        start_pos=max(0, record.start_pos - cut),
        cached_tokens=max(0, record.cached_tokens - cut),
    )


def _drawn(trace: Trace, rng: np.random.Generator, *, rows: Rows, deep: bool = False) -> Trace:
    """Cuts the longest prompts only, or, `deep`, all but the shortest to its length."""
    lengths = np.sort(np.unique(trace.requests.prompt_len.astype(np.int64)))
    longest, middle = int(lengths[-1]), int(lengths[len(lengths) // 2 if not deep else 0])
    most = min(middle, longest - int(rng.integers(1, max(2, longest // 3))))
    return prompts_truncated(trace, most, rows)


PROMPT_TRUNCATED = fault_of_variants(
    "prompt-truncated",
    "verl#6089",
    {
        "whole": partial(_drawn, rows="whole"),
        "tail": partial(_drawn, rows="tail"),
        "tail-deep": partial(_drawn, rows="tail", deep=True),
        "twice": partial(_drawn, rows="twice"),
    },
)
