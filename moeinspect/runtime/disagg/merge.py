"""Puts the prompt rows of the prefill worker before the output rows of the decode worker."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from moeinspect.errors import EngineError
from moeinspect.runtime.answers import Answer, Ended
from moeinspect.runtime.capture.collector import ROW_COLUMNS, CollectedRows, join_rows
from moeinspect.runtime.faults import BATCH_INDEX_SWAP, MERGE_MISALIGNED, NO_MERGE, SURPLUS_AFTER_STOP
from moeinspect.runtime.records import RequestKey


def merge_answers(
    prefill: Answer, decode: Answer | None, prompt_len: int, output_len: int, faults: Collection[str]
) -> tuple[Ended, CollectedRows | None]:
    """What both workers of a request say, as one; `decode` is None if nothing was to be sampled.

    Raises:
        EngineError: the rows of the two sides do not fit together.
    """
    if prefill.ended is None or (decode is not None and decode.ended is None):
        raise RuntimeError("answers were merged before the request had ended")
    if decode is None or decode.ended is None:
        return prefill.ended, prefill.rows
    ended = replace(
        decode.ended,
        cached_tokens=prefill.ended.cached_tokens,
        num_retractions=prefill.ended.num_retractions + decode.ended.num_retractions,
    )
    if NO_MERGE in faults:
        return ended, decode.rows
    if MERGE_MISALIGNED in faults or BATCH_INDEX_SWAP in faults:
        return ended, _spliced(prefill.rows, decode.rows, prompt_len + output_len - 1)
    if ended.finish_reason == "abort" and output_len == 0:
        return ended, prefill.rows  # as far as the prompt got
    if prefill.rows is None and decode.rows is None:
        return ended, None
    if prefill.rows is None or decode.rows is None:
        side = "prefill" if prefill.rows is None else "decode"
        raise EngineError(f"{_name(prefill.key)}: the {side} worker returned no rows, the other one did")
    surplus = SURPLUS_AFTER_STOP in faults
    return ended, merge_rows(
        prefill.key, prefill.rows, decode.rows, prompt_len, output_len, may_be_more=surplus
    )


def merge_rows(
    key: RequestKey,
    prefill: CollectedRows,
    decode: CollectedRows,
    prompt_len: int,
    output_len: int,
    *,
    may_be_more: bool = False,
) -> CollectedRows:
    """Rows [0, P) of `prefill` followed by rows [P, P + N - 1) of `decode`, or more if that `may_be`.

    Merged by row, with starts, lengths and shapes checked: splicing bytes by their length alone shifts
    every row from the seam on when the two sides disagree.

    Raises:
        EngineError: the two sides do not fit together.
    """
    where = f"{_name(key)}: the rows of the two workers do not fit together"
    if prefill.start != 0 or len(prefill) != prompt_len:
        raise EngineError(f"{where}: prefill returned {_span(prefill)}, not [0, {prompt_len})")
    end = prompt_len + max(0, output_len - 1)
    stop = decode.start + len(decode)
    if decode.start != prompt_len or stop < end or (stop > end and not may_be_more):
        raise EngineError(f"{where}: decode returned {_span(decode)}, not [{prompt_len}, {end})")
    if prefill.expert_ids.shape[1:] != decode.expert_ids.shape[1:]:
        raise EngineError(
            f"{where}: prefill has {prefill.expert_ids.shape[1:]} ids a row, "
            f"decode {decode.expert_ids.shape[1:]}"
        )
    return _joined(where, prefill, decode)


def _spliced(
    prefill: CollectedRows | None, decode: CollectedRows | None, length: int
) -> CollectedRows | None:
    """The rows of `prefill` and as many of `decode` as `length` still needs, wherever they start."""
    if prefill is None or decode is None:
        return decode
    missing = max(0, length - len(prefill))
    return _joined("", prefill, decode.between(decode.start, decode.start + missing))


def _joined(where: str, first: CollectedRows, second: CollectedRows) -> CollectedRows:
    """The rows of `second` after those of `first`, with everything that is known of each row.

    Raises:
        EngineError: one side lacks a column that the other has, or has it in another dtype.
    """
    for name in ROW_COLUMNS:
        a, b = getattr(first, name), getattr(second, name)
        if (a is None) != (b is None):
            raise EngineError(f"{where}: only one of them returned {name}")
        if a is not None and a.dtype != b.dtype:
            raise EngineError(f"{where}: {name} are {a.dtype} and {b.dtype}")
    return join_rows([first, second])


def _name(key: RequestKey) -> str:
    request_id, sample = key
    return f"request {request_id!r}" + (f" sample {sample}" if sample else "")


def _span(rows: CollectedRows) -> str:
    return f"[{rows.start}, {rows.start + len(rows)})"
