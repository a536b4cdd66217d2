"""Answers of turns that are put together wrongly: `double-concat` and `turn-gap`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moeinspect.trace.schema import RequestRecord, Trace
from moeinspect.trace.transport.choosing import declared_missing, some_requests, with_made_rows
from moeinspect.trace.transport.fault import TransportFault
from moeinspect.trace.transport.records import records_of, rows_taken, trace_of

GAPS = ("zero-row", "missing-row", "dropped-row", "missing-turn", "dropped-turn")
"""What stands between turns: a padding row of zeros that stayed, the same row declared missing or not there
at all; or all rows of a turn that was aborted before it was captured, declared missing or not there."""

_SHORTEST_PART = 2


def joined_twice(
    trace: Trace, rng: np.random.Generator, *, parts: int = 2, cut: bool = False, share: float = 0.5
) -> Trace:
    """Each answer of a continued request, which has all rows so far, is appended to those that are there.

    A partial rollout in verl went on with `torch.cat([old, new])` (verl#6029, verl#7158); a server that
    ignores the start that it was asked for answers from row 0 (strands-sglang#72). With `parts` answers of
    m1 < m2 < ... < n rows the consumer holds m1 + m2 + ... + n of them. `cut`: it then keeps as many as there
    are tokens, so that the rows from m1 on are those of the beginning. Everything that stands beside a row
    comes along.

    Raises:
        NoEffectError: no request is long enough to have `parts` answers.
    """
    records = records_of(trace)
    fewest = _SHORTEST_PART * parts
    for number in some_requests(records, rng, DOUBLE_CONCAT.name, fewest_rows=fewest, share=share):
        record = records[number]
        n = len(record.expert_ids)
        ends = np.sort(rng.choice(np.arange(_SHORTEST_PART, n), size=parts - 1, replace=False))
        source = np.concatenate([np.arange(end) for end in (*ends.tolist(), n)])
        records[number] = rows_taken(record, source[:n] if cut else source)
    return trace_of(trace, records)


def gaps_between_turns(
    trace: Trace,
    rng: np.random.Generator,
    *,
    gap: str = "zero-row",
    turns: int = 2,
    share: float = 0.5,
) -> Trace:
    """Turns that are joined without the row of the last token of each turn but the last, or without a turn.

    An answer has no row for its last token: the next turn's prefill computes it. prime-rl padded each answer
    by a zero row and kept the padding (prime-rl#1807); miles went on behind a turn that was aborted before
    its rows were captured (miles#1672). `gap` is one of GAPS. Rows that are "dropped" leave fewer rows than
    tokens, so that all later ones stand too early.

    Raises:
        NoEffectError: no request is long enough to have so many turns.
    """
    records = records_of(trace)
    fewest = 2 * turns + 2
    for number in some_requests(records, rng, TURN_GAP.name, fewest_rows=fewest, share=share):
        record = records[number]
        rows = _gap_rows(len(record.expert_ids), rng, turns, whole=gap.endswith("turn"))
        records[number] = _with_gap(record, rows, gap)
    return trace_of(trace, records)


def _gap_rows(n: int, rng: np.random.Generator, turns: int, *, whole: bool) -> NDArray[np.int64]:
    """Rows at the ends of turns, which are at least 2 rows long; or all of an inner turn."""
    count = turns if whole else turns - 1
    ends = np.sort(rng.choice(np.arange(1, n - count), size=count, replace=False)) + np.arange(count)
    if not whole:
        return np.asarray(ends, dtype=np.int64)
    turn = int(rng.integers(count - 1))
    return np.arange(ends[turn], ends[turn + 1], dtype=np.int64)


def _with_gap(record: RequestRecord, rows: NDArray[np.int64], gap: str) -> RequestRecord:
    if gap.startswith("dropped"):
        return rows_taken(record, np.delete(np.arange(len(record.expert_ids)), rows))
    if gap.startswith("missing"):
        return declared_missing(record, rows)
    return with_made_rows(record, rows, np.zeros((len(rows), *record.expert_ids.shape[1:]), dtype=np.int64))


def _any_join(trace: Trace, rng: np.random.Generator) -> Trace:
    return joined_twice(trace, rng, parts=int(rng.integers(2, 4)))


def _any_gap(trace: Trace, rng: np.random.Generator) -> Trace:
    return gaps_between_turns(trace, rng, gap=str(rng.choice(GAPS)), turns=int(rng.integers(2, 5)))


DOUBLE_CONCAT = TransportFault("double-concat", "verl#6029, verl#7158, strands-sglang#72", _any_join)
TURN_GAP = TransportFault("turn-gap", "prime-rl#1807, miles#1672", _any_gap)
