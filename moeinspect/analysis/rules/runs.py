"""Runs of neighbouring elements, without loops over elements."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def run_bounds(joined: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First and last-exclusive index of each maximal run.

    `joined` [n]: element i belongs to the run of element i - 1 (the first entry is not looked at).
    """
    n = len(joined)
    if not n:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    breaks = ~joined
    breaks[0] = True
    starts = np.flatnonzero(breaks).astype(np.int64)
    return starts, np.append(starts[1:], n)


def true_runs(
    mask: NDArray[np.bool_], joined: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Maximal runs of true elements of `mask` [n] of which each but the first is `joined` to the last one."""
    index = np.flatnonzero(mask).astype(np.int64)
    linked = np.zeros(len(index), dtype=bool)
    linked[1:] = (np.diff(index) == 1) & joined[index[1:]]
    starts, ends = run_bounds(linked)
    return index[starts] if len(index) else starts, index[ends - 1] + 1 if len(index) else ends


def spread(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """All indices of the ranges [start, end), one range after another."""
    return np.repeat(starts, ends - starts) + count_up(ends - starts)


def count_up(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, 1, ..., length - 1 for each length, one after another."""
    after = np.cumsum(lengths)
    total = int(after[-1]) if len(after) else 0
    return np.arange(total, dtype=np.int64) - np.repeat(after - lengths, lengths)


def count_distinct(group: NDArray[np.int64], value: NDArray[np.int64], num_groups: int) -> NDArray[np.int64]:
    """Number of distinct values [num_groups] among the elements of each group."""
    if not len(group):
        return np.zeros(num_groups, np.int64)
    order = np.lexsort((value, group))
    g, v = group[order], value[order]
    new = np.ones(len(g), dtype=bool)
    new[1:] = (g[1:] != g[:-1]) | (v[1:] != v[:-1])
    return np.bincount(g[new], minlength=num_groups).astype(np.int64)
