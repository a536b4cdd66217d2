"""What a cell looks like by itself, for all cells of a trace in one pass.

Works on slot columns: comparing the K(K-1)/2 pairs of columns of a transposed block runs many times faster
than sorting each cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHUNK_BYTES = 1 << 21


@dataclass(frozen=True, slots=True)
class CellFacts:
    """One flag per cell [R, M]: all ids zero, an id that repeats, an id that is no expert's."""

    zero: NDArray[np.bool_]
    duplicate: NDArray[np.bool_]
    out_of_range: NDArray[np.bool_]


def cell_facts(ids: NDArray[Any], num_experts: int) -> CellFacts:
    """Looks at every cell of ids [R, M, K]; a cell of zeros has a repeated id, too, if K > 1."""
    R, M, K = ids.shape
    zero, duplicate, out_of_range = (np.zeros((R, M), dtype=bool) for _ in range(3))
    signed = ids.dtype.kind == "i"
    may_exceed = np.iinfo(ids.dtype).max >= num_experts
    chunk = max(1, CHUNK_BYTES // max(1, M * K * ids.dtype.itemsize))
    for first in range(0, R, chunk):
        block = slice(first, first + chunk)
        columns = np.ascontiguousarray(ids[block].reshape(-1, K).T)
        shape = zero[block].shape
        zero[block] = ~np.bitwise_or.reduce(columns, axis=0).reshape(shape).astype(bool)
        duplicate[block] = has_duplicate(columns).reshape(shape)
        if may_exceed:
            out_of_range[block] = (np.maximum.reduce(columns, axis=0) >= num_experts).reshape(shape)
        if signed:
            out_of_range[block] |= (np.minimum.reduce(columns, axis=0) < 0).reshape(shape)
    return CellFacts(zero, duplicate, out_of_range)


def has_duplicate(columns: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether an id repeats in each cell [n], from slot columns [K, n]."""
    K, n = columns.shape
    found = np.zeros(n, dtype=bool)
    for slot in range(1, K):
        for earlier in range(slot):
            found |= columns[slot] == columns[earlier]
    return found


def multiplicity(cells: NDArray[Any]) -> int:
    """How often the most repeated id of any of these cells [n, K] stands in it."""
    equal = cells[:, :, None] == cells[:, None, :]
    return int(equal.sum(axis=2).max()) if cells.size else 0
