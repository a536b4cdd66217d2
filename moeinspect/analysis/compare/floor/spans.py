"""Spans of rows of one request in which a kind of mismatch stands far more densely than in the floor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.align import Alignment
from moeinspect.analysis.compare.floor.kinds import SHORTEST_OF_A_LAYER, WINDOWS, Kind, window_counts
from moeinspect.analysis.compare.floor.largedev import log_binomial_tail, log_poisson_tail
from moeinspect.analysis.compare.floor.measure import KindFloor

_DENSE = {"set": 0.75, "far": 0.4, "order": 0.75, "weight": 0.75}
"""Smallest share of mismatches: a span that holds something else has hardly a right cell.

Rounding thins out instead: cells after a flip are more likely to flip, but most do not.
"""


@dataclass(frozen=True, slots=True)
class Span:
    """Rows of one request among the R compared ones, and the places of the layers that are wrong there."""

    rows: slice
    places: tuple[int, ...]


def dense_spans(
    alignment: Alignment,
    kind: Kind,
    counted: NDArray[np.bool_],
    rate: NDArray[np.float64],
    size: NDArray[np.int64],
    measured: KindFloor,
    slack: float,
    log_chance: float,
) -> Iterator[Span]:
    """Spans of single layers and of all, found in windows of 1 to 64 rows.

    `counted` [R, L] are the cells that take part, `rate` and `size` [L] the floor's shares and cells.
    """
    counted, wrong = counted.copy(), kind.mismatch & counted
    mismatch = wrong.copy()
    usable = counted.any(axis=0) & (size > 0)
    null = np.minimum(0.99, slack * (np.nan_to_num(rate) + 1 / np.maximum(1, size)))
    dense = _DENSE[kind.name]
    limit = log_chance - np.log(max(1, mismatch.size))
    marked = np.zeros_like(mismatch)
    for length in (n for n in WINDOWS if n <= len(mismatch)):
        if length >= SHORTEST_OF_A_LAYER:
            counts = window_counts(alignment, mismatch, length)
            bound = log_binomial_tail(counts, length, null) / measured.by_window.get(length, 1.0)
            hit = (bound < limit) & (counts >= dense * length) & usable
            hit &= counts > measured.most_of_layer.get(length, 0)
            _mark(marked, hit, length)
        counts = window_counts(alignment, mismatch.sum(axis=1, dtype=np.int64), length)
        whole = window_counts(alignment, counted.sum(axis=1, dtype=np.int64), length)
        mean = length * float(null[usable].sum())
        bound = log_poisson_tail(counts, mean) / measured.by_row_all
        hit = (bound < limit) & (counts >= dense * whole) & (counts > measured.most_of_rows.get(length, 0))
        _mark(marked, hit[:, None] & usable[None, :], length)
        mismatch &= ~marked  # what a short window has found makes no long one dense
        counted &= ~marked
    yield from _spans(alignment, marked, wrong)


def _mark(marked: NDArray[np.bool_], hit: NDArray[np.bool_], length: int) -> None:
    """Marks every row of the windows that were hit; `hit` [n, L] is by first row."""
    if hit.any():
        for offset in range(length):
            marked[offset : offset + len(hit)] |= hit


def _spans(alignment: Alignment, marked: NDArray[np.bool_], mismatch: NDArray[np.bool_]) -> Iterator[Span]:
    """Marked rows that follow one another in a request, trimmed to the first and last that mismatch."""
    wrong = marked & mismatch
    rows = np.flatnonzero(marked.any(axis=1))
    if not len(rows):
        return
    breaks = (np.diff(rows) != 1) | (np.diff(alignment.pair[rows]) != 0)
    for run in np.split(rows, np.flatnonzero(breaks) + 1):
        inside = run[wrong[run].any(axis=1)]
        if len(inside):
            span = slice(int(inside[0]), int(inside[-1]) + 1)
            yield Span(span, tuple(np.flatnonzero(wrong[span].any(axis=0)).tolist()))
