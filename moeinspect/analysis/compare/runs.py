"""Merges mismatching cells into findings: runs of rows of one request with the same layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.align import Alignment

MAX_RUNS = 10_000
"""Beyond this many runs of one kind, the runs of one request become one finding."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs among the R comparable rows; arrays [n]. `merged` runs span rows that do not mismatch, too."""

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    merged: bool

    def __iter__(self) -> Iterator[slice]:
        for start, end in zip(self.start.tolist(), self.end.tolist(), strict=True):
            yield slice(start, end)

    def sums(self, cells: NDArray[np.bool_] | NDArray[np.integer]) -> NDArray[np.int64]:
        """Total over each run [n] of a value per cell [R, L]."""
        per_row = np.concatenate([[0], np.cumsum(cells.sum(axis=1, dtype=np.int64))])
        return np.asarray(per_row[self.end] - per_row[self.start])


def runs_of(alignment: Alignment, mismatch: NDArray[np.bool_]) -> Runs:
    """Maximal runs of consecutive positions of one request in which the same layers mismatch."""
    index = np.flatnonzero(mismatch.any(axis=1))
    if not len(index):
        return Runs(index, index, merged=False)
    layers = np.packbits(mismatch[index], axis=1)
    new = np.ones(len(index), dtype=bool)
    new[1:] = (
        (np.diff(index) != 1)
        | (np.diff(alignment.pair[index]) != 0)
        | (np.diff(alignment.position[index]) != 1)
        | (layers[1:] != layers[:-1]).any(axis=1)
    )
    if new.sum() > MAX_RUNS:
        return _runs_by_request(alignment, index)
    starts = np.flatnonzero(new)
    ends = np.append(starts[1:], len(index)) - 1
    return Runs(index[starts], index[ends] + 1, merged=False)


def _runs_by_request(alignment: Alignment, index: NDArray[np.int64]) -> Runs:
    starts = np.flatnonzero(np.diff(alignment.pair[index], prepend=-1) != 0)
    ends = np.append(starts[1:], len(index)) - 1
    return Runs(index[starts], index[ends] + 1, merged=True)
