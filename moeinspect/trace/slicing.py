"""How context-parallel ranks cut the rows of a sequence, and the orders in which they are joined wrongly."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

NOTHING = -1
"""In a list of sources: padding, which holds zeros."""

Order = Literal["ranks", "unzigzagged", "swapped", "striped", "unstriped", "first-rank", "multiple"]
ORDERS: tuple[Order, ...] = get_args(Order)


def zigzag_order(num_ranks: int) -> NDArray[np.int64]:
    """The pieces [2 C] as the ranks hold them one after another: rank r has r and 2 C - 1 - r.

    As in verl's and slime's `slice_with_cp`: each rank has as much attention to do.
    """
    first = np.arange(num_ranks)
    return np.stack([first, 2 * num_ranks - 1 - first], axis=1).reshape(-1)


def sliced_source(num_rows: int, num_ranks: int, order: Order) -> NDArray[np.int64]:
    """Which row [num_rows] stands at each place after the slices were put together; `NOTHING`: padding.

    `ranks`: zigzag pieces, joined rank after rank. `unzigzagged`: pieces cut straight, joined as if they had
    been cut in zigzag. `striped`: every C-th row, joined rank after rank. `unstriped`: the other way round.
    `swapped`: zigzag pieces, those of a rank in the other order. `first-rank`: each rank has the first one's
    slice. `multiple`: each rank's slice begins one row later than the last one's end, as when rows are padded
    to another multiple than tokens.
    """
    pieces = 2 * num_ranks
    size = -(-num_rows // pieces)
    padded = np.where(np.arange(pieces * size) < num_rows, np.arange(pieces * size), NOTHING)
    if order == "ranks":
        moved = padded.reshape(pieces, size)[zigzag_order(num_ranks)].reshape(-1)
    elif order == "unzigzagged":
        moved = padded.reshape(pieces, size)[np.argsort(zigzag_order(num_ranks))].reshape(-1)
    elif order == "swapped":
        moved = padded.reshape(pieces, size)[zigzag_order(num_ranks).reshape(-1, 2)[:, ::-1].reshape(-1)]
        moved = moved.reshape(-1)
    elif order == "striped":
        moved = padded.reshape(2 * size, num_ranks).T.reshape(-1)
    elif order == "unstriped":
        moved = padded.reshape(num_ranks, 2 * size).T.reshape(-1)
    elif order == "first-rank":
        moved = np.tile(padded[: 2 * size], num_ranks)
    else:
        place = np.arange(len(padded))
        moved = place + place // (2 * size)
        moved = np.where(moved < num_rows, moved, NOTHING)
    return np.asarray(moved[:num_rows], dtype=np.int64)
