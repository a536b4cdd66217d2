"""Set arithmetic on many cells at once. A cell is K expert ids; K is small, the number of cells is not.

Everything works on slot columns ([K, n], one contiguous run per slot): comparing all pairs of columns is
many times faster than sorting each cell.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def gather(values: NDArray[Any], rows: NDArray[np.int64], axis: NDArray[np.int64]) -> NDArray[Any]:
    """`values[rows][:, axis]`, a view where both are one run."""
    return _take(_take(values, rows, 0), axis, 1)


def _take(values: NDArray[Any], index: NDArray[np.int64], axis: int) -> NDArray[Any]:
    if len(index) and bool((np.diff(index) == 1).all()):
        run = slice(int(index[0]), int(index[-1]) + 1)
        return values[run] if axis == 0 else values[:, run]
    return np.take(values, index, axis=axis)


def slot_columns(cells: NDArray[Any]) -> NDArray[Any]:
    """Cells [n, K] as contiguous slot columns [K, n]."""
    return np.ascontiguousarray(cells.T)


def first_occurrence(columns: NDArray[Any]) -> NDArray[np.bool_]:
    """Which slots [K, n] hold an id that no earlier slot of the cell holds."""
    first = np.ones(columns.shape, dtype=bool)
    for later in range(1, len(columns)):
        for earlier in range(later):
            first[later] &= columns[later] != columns[earlier]
    return first


def num_distinct(columns: NDArray[Any]) -> NDArray[np.uint8]:
    """Number of distinct ids of each cell [n], from slot columns [K, n]."""
    return np.asarray(first_occurrence(columns).sum(axis=0, dtype=np.uint8))


def overlap_of(columns_a: NDArray[Any], columns_b: NDArray[Any]) -> NDArray[np.uint8]:
    """Size of the intersection of two id sets per cell [n], from slot columns [Ka, n] and [Kb, n]."""
    first = first_occurrence(columns_a)
    overlap = np.zeros(columns_a.shape[1], dtype=np.uint8)
    for slot, column in enumerate(columns_a):
        found = np.zeros(columns_a.shape[1], dtype=bool)
        for other in columns_b:
            found |= column == other
        overlap += found & first[slot]
    return overlap


def sets_equal(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether the cells [..., Ka] and [..., Kb] hold the same set of ids [...]."""
    columns_a = slot_columns(a.reshape(-1, a.shape[-1]))
    columns_b = slot_columns(b.reshape(-1, b.shape[-1]))
    overlap = overlap_of(columns_a, columns_b)
    equal = (overlap == num_distinct(columns_a)) & (overlap == num_distinct(columns_b))
    return np.asarray(equal.reshape(a.shape[:-1]))


def set_keys(cells: NDArray[Any]) -> NDArray[np.uint64]:
    """A 64-bit key per cell [...] that does not depend on the order of its ids [..., K].

    Equal multisets have equal keys; unequal ones collide with a probability near 2**-64 each.
    """
    keys = np.zeros(cells.shape[:-1], dtype=np.uint64)
    if not cells.size:
        return keys
    low, high = int(cells.min()), int(cells.max())
    table = _mix(np.arange(low, high + 1, dtype=np.int64).astype(np.uint64)) if high - low < 1 << 20 else None
    for slot in range(cells.shape[-1]):
        ids = cells[..., slot].astype(np.int64)
        keys += _mix(ids.astype(np.uint64)) if table is None else table[ids - low]
    return keys


def row_keys(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A 64-bit key per row [n] from the set keys of its cells [n, L]; the layer order matters."""
    weights = _mix(np.arange(1, keys.shape[1] + 1, dtype=np.uint64)) | np.uint64(1)
    return np.asarray((_mix(keys) * weights).sum(axis=1, dtype=np.uint64))


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64: spreads small integers over 64 bits."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
