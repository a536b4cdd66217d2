"""`cp-slice` told by where its rows would stand: whole orders are tried, so that equal rows do not matter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.cells import set_keys
from moeinspect.analysis.diagnose.mismatch import Mismatch
from moeinspect.analysis.diagnose.nextstep import diagnosis
from moeinspect.analysis.diagnose.sources import Sources
from moeinspect.analysis.diagnose.words import counted, percent
from moeinspect.analysis.findings import Diagnosis
from moeinspect.trace.slicing import NOTHING, Order, sliced_source

_RANKS = (*range(2, 17), 24, 32, 64)
_WRONG = 0.5
"""Share of a row's cells that have to be wrong: rounding turns over fewer."""
_FITS = 0.85
"""Share of cells that have to hold what an order says, where it says something else than the right one."""
_EXPLAINED = 0.8
_TOUCHED = 0.2
"""Share of rows that slices in a wrong order get wrong, at least."""
_FEWEST_ROWS = 12
_MOST_ROWS = 4096
"""Rows on which orders are tried."""

_WORDS: dict[Order, str] = {
    "ranks": "pieces of a zigzag stand rank after rank",
    "unzigzagged": "pieces that were cut straight were joined as a zigzag is",
    "swapped": "both pieces of each rank's zigzag changed places",
    "striped": "rows dealt out in turn stand rank after rank",
    "unstriped": "slices were joined by a row of each in turn",
    "first-rank": "every rank has the first one's slice",
    "multiple": "each rank's slice begins one row later than the last one's end",
}
"""Orders in which slices come to stand."""


@dataclass(frozen=True, slots=True)
class _Sample:
    """Compared rows of some whole requests: keys [n, L] of both sides, and which rows are wrong."""

    ours: NDArray[np.uint64]
    right: NDArray[np.uint64]
    bad: NDArray[np.bool_]
    sizes: tuple[int, ...]
    """Rows of each request."""


def diagnose_slices(mismatch: Mismatch, sources: Sources) -> Diagnosis | None:
    """One order of slices, for one number of ranks, that says what nearly all wrong rows hold."""
    sample = _sample(mismatch)
    if sample is None or sample.bad.mean() < _TOUCHED:
        return None
    best = max(_fitting(sample), default=None, key=lambda one: one[0])
    if best is None:
        return None
    share, order, ranks, asked = best
    because = [
        f"{percent(share)} of the cells of {counted(asked, 'row')} hold what stands there if each request "
        f"was cut for {ranks} ranks and put together in another order: {_WORDS[order]}",
    ]
    return diagnosis("cp-slice", 0.96, because, mismatch.a)


def _sample(mismatch: Mismatch) -> _Sample | None:
    """Whole requests, the longest first; those of which rows are not compared say nothing."""
    alignment = mismatch.alignment
    requests = alignment.b.requests
    whole = []
    for pair, (_, request) in enumerate(alignment.pairing.pairs):
        own = alignment.rows_of_pair(pair)
        if 0 < own.stop - own.start == int(requests.num_rows[request]):
            whole.append(own)
    whole.sort(key=lambda own: own.start - own.stop)
    kept: list[slice] = []
    total = 0
    for own in whole:
        if kept and total + own.stop - own.start > _MOST_ROWS:
            break
        kept.append(own)
        total += own.stop - own.start
    if not kept:
        return None
    rows = np.concatenate([np.arange(own.start, own.stop) for own in kept])
    ours, right = (set_keys(mismatch.ids(side, rows)) for side in "ab")
    wrong = (mismatch.cells.sum(axis=1) >= _WRONG * ours.shape[1])[rows]
    sizes = tuple(own.stop - own.start for own in kept)
    return _Sample(ours, right, wrong, sizes)


def _fitting(sample: _Sample) -> Iterator[tuple[float, Order, int, int]]:
    """Share of cells, order, ranks and rows asked, of all that fit."""
    starts = np.concatenate([[0], np.cumsum(sample.sizes)[:-1]])
    own = np.arange(len(sample.bad))
    for order in _WORDS:
        for ranks in _RANKS:
            if order == "multiple" and ranks == 2:
                continue  # a shift from the middle on, which the end of the prompt may be
            source = [sliced_source(size, ranks, order) for size in sample.sizes]
            place = np.concatenate(
                [
                    np.where(one == NOTHING, NOTHING, one + start)
                    for one, start in zip(source, starts, strict=True)
                ]
            )
            known = np.flatnonzero(place != NOTHING)
            differ = (sample.right[place[known]] != sample.right[own[known]]).mean(axis=1) >= _WRONG
            asked = known[differ]
            if len(asked) < _FEWEST_ROWS:
                continue
            share = float((sample.ours[asked] == sample.right[place[asked]]).mean())
            said = np.zeros(len(own), dtype=bool)
            said[asked] = True
            said |= place == NOTHING
            if share >= _FITS and said[sample.bad].mean() >= _EXPLAINED:
                yield share, order, ranks, len(asked)
