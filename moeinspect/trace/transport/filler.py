"""Rows that nobody captured: `filler-as-real`, `partial-sentinel`, `missing-request`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moeinspect.trace.schema import RequestRecord, Trace
from moeinspect.trace.transport.choosing import (
    declared_missing,
    some_requests,
    with_appended_rows,
    with_made_rows,
    without_rows,
)
from moeinspect.trace.transport.fault import NoEffectError, TransportFault
from moeinspect.trace.transport.records import records_of, trace_of

FILLERS = ("zeros", "minus-one", "arange", "running", "copied")
"""0 in all places (verl, prime-rl, ROLL, ms-swift); -1, stored as it is (miles, NeMo-RL, tunix); 0 to K-1 in
every cell (NeMo-RL); ids that run through the whole array modulo E (slime); a copy of the last row."""

PLACES = ("tail", "padding", "prompt", "between", "request")
"""The last rows; more rows behind them; the first of the prompt; rows in the middle, as of tools; all."""

PARTS = ("layers", "slots", "cut")
"""What of a row is -1: some layers (a mask made from one), the last slots (a pad of another width), or all
from the middle of a row on (a slice of the flattened array)."""

ABSENCES = ("field", "sentinel")
"""No row at all, or every row -1 and declared missing, as NeMo-RL hands it on."""

_LONGEST = 16
"""Rows of filler, at most: pads to a multiple of the ranks, and what a tool says."""


def filled(
    trace: Trace,
    rng: np.random.Generator,
    *,
    filler: str = "zeros",
    place: str = "tail",
    share: float = 0.5,
    rows: int = 0,
) -> Trace:
    """Rows of filler that are not declared, in the requests that lack what the trainer wants.

    `filler` is one of FILLERS, `place` of PLACES; `rows` 0 draws how many. Padding makes more rows than
    tokens were fed; at all other places filler stands where a captured row should be.

    Raises:
        NoEffectError: no request is long enough, or `copied` is asked for whole requests, which have no row
            that could be copied.
    """
    if filler == "copied" and place == "request":
        raise NoEffectError(FILLER_AS_REAL.name, "a whole request of filler has no row that could be copied")
    records = records_of(trace)
    for number in some_requests(records, rng, FILLER_AS_REAL.name, fewest_rows=max(8, rows + 4), share=share):
        record = records[number]
        n = len(record.expert_ids)
        prompt = len(record.prompt_ids) - record.start_pos
        room = {"prompt": prompt - 1, "request": n, "padding": _LONGEST}.get(place, n // 2)
        count = n if place == "request" else min(rows or int(rng.integers(1, _LONGEST + 1)), max(1, room))
        if place == "padding":
            record, first = with_appended_rows(record, count), n
        else:
            first = _first_row(place, n, count, rng, is_copy=filler == "copied")
        where = np.arange(first, first + count)
        records[number] = with_made_rows(record, where, _filler_ids(filler, record, first, count, trace))
    return trace_of(trace, records)


def partly_absent(
    trace: Trace, rng: np.random.Generator, *, part: str = "layers", share: float = 0.5
) -> Trace:
    """Rows that are -1 in some places only; `part` is one of PARTS (miles#2770).

    Behind a cut all rows are -1, and declared missing.

    Raises:
        NoEffectError: a row has no part that could be absent.
    """
    records = records_of(trace)
    top_k = trace.rows.expert_ids.shape[2]
    moe = np.flatnonzero(np.isin(trace.axis_layers(), trace.model.moe_layers))
    if (part == "layers" and len(moe) < 2) or (part == "slots" and top_k < 2) or len(moe) * top_k < 2:
        raise NoEffectError(PARTIAL_SENTINEL.name, f"a row has no {part} of which some could be absent")
    absent = moe[: int(rng.integers(1, len(moe)))] if part == "layers" else moe
    kept_slots = int(rng.integers(1, top_k)) if part == "slots" else 0
    for number in some_requests(records, rng, PARTIAL_SENTINEL.name, fewest_rows=4, share=share):
        record = records[number]
        n = len(record.expert_ids)
        count = int(rng.integers(1, min(_LONGEST, n // 2) + 1))
        first = n - count
        if part == "cut":
            flat = moe.size * top_k
            keep = int(rng.integers(1, flat))
            place, slot = np.divmod(np.arange(keep, flat), top_k)
            record = declared_missing(record, np.arange(first + 1, n))
            record.expert_ids[first, moe[place], slot] = -1
        else:
            record.expert_ids[first:, absent, kept_slots:] = -1
        records[number] = record
    return trace_of(trace, records)


def without_payload(
    trace: Trace, rng: np.random.Generator, *, absence: str = "field", share: float = 0.3
) -> Trace:
    """Requests that lack their rows, as a router that drops the flag leaves them; `absence` of ABSENCES.

    Seen in slime#1145 and miles#407 (the field is absent) and in NeMo-RL (every row is -1 then).
    """
    records = records_of(trace)
    for number in some_requests(records, rng, MISSING_REQUEST.name, fewest_rows=1, share=share):
        record = records[number]
        every = np.arange(len(record.expert_ids))
        records[number] = without_rows(record) if absence == "field" else declared_missing(record, every)
    return trace_of(trace, records)


def _first_row(place: str, n: int, count: int, rng: np.random.Generator, *, is_copy: bool) -> int:
    if place == "tail":
        return n - count
    if place == "between":
        return int(rng.integers(1, n - count))
    return int(is_copy)


def _filler_ids(
    filler: str, record: RequestRecord, first: int, count: int, trace: Trace
) -> NDArray[np.int64]:
    """Ids [count, L, K] of the filler that stands from row `first` on."""
    shape = (count, *record.expert_ids.shape[1:])
    if filler == "zeros":
        return np.zeros(shape, dtype=np.int64)
    if filler == "minus-one":
        return np.full(shape, -1, dtype=np.int64)
    if filler == "arange":
        return np.broadcast_to(np.arange(shape[2]), shape) % trace.model.num_experts
    if filler == "running":
        return np.arange(np.prod(shape)).reshape(shape) % trace.model.num_experts
    return np.broadcast_to(record.expert_ids[first - 1], shape)


def _any_filler(trace: Trace, rng: np.random.Generator) -> Trace:
    filler = str(rng.choice(FILLERS))
    places = PLACES[:-1] if filler == "copied" else PLACES
    return filled(trace, rng, filler=filler, place=str(rng.choice(places)))


def _any_part(trace: Trace, rng: np.random.Generator) -> Trace:
    return partly_absent(trace, rng, part=str(rng.choice(PARTS)))


def _any_absence(trace: Trace, rng: np.random.Generator) -> Trace:
    return without_payload(trace, rng, absence=str(rng.choice(ABSENCES)))


FILLER_AS_REAL = TransportFault("filler-as-real", "slime, miles#2697, NeMo-RL, prime-rl", _any_filler)
PARTIAL_SENTINEL = TransportFault("partial-sentinel", "miles#2770", _any_part)
MISSING_REQUEST = TransportFault("missing-request", "slime#1145, miles#407", _any_absence)
