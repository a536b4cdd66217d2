"""How unevenly healthy slots use the experts: the yardstick for a slot that never changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.rules.view import TraceView

BLOCK_ROWS = 64
MAX_BLOCKS = 64


def largest_share(
    view: TraceView, readable: NDArray[np.bool_], suspects: Sequence[tuple[int, int, int, int]]
) -> float:
    """Largest share that one id has in a slot over a block of rows, suspects left out; 1 if none is left.

    `suspects` are (place, slot, first, last): slots of a layer that are constant over rows [first, last) of
    the file. Blocks are stretches of neighbouring rows, so that slots which keep to one expert within a
    request or a topic show it.
    """
    largest = 0.0
    blocks = _blocks(view, readable)
    for rows in blocks:
        share = _shares(view.ids[rows])
        share[view.exempt] = -1.0
        for place, slot, first, last in suspects:
            if rows[-1] >= first and rows[0] < last:
                share[place, slot] = -1.0
        largest = max(largest, float(share.max(initial=-1.0)))
    return largest if largest > 0 else 1.0


def _blocks(view: TraceView, readable: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
    """Stretches of `BLOCK_ROWS` rows, evenly spread over the trace; one of all rows if there are fewer."""
    rows = np.flatnonzero(readable).astype(np.int64)
    blocks = np.array_split(rows, max(1, len(rows) // BLOCK_ROWS))
    step = -(-len(blocks) // MAX_BLOCKS)
    return blocks[::step]


def _shares(ids: NDArray[Any]) -> NDArray[np.float64]:
    """Share of the most frequent id in each column [M, K] of a block [n, M, K]."""
    n, M, K = ids.shape
    ordered = np.sort(ids.reshape(n, -1), axis=0)
    longest = np.ones(M * K, dtype=np.int64)
    current = np.ones(M * K, dtype=np.int64)
    for row in range(1, n):
        current = np.where(ordered[row] == ordered[row - 1], current + 1, 1)
        np.maximum(longest, current, out=longest)
    shares: NDArray[np.float64] = (longest / n).reshape(M, K)
    return shares
