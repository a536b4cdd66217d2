"""Equal sets in another order that rounding alone explains.

Where a trace holds weights, an order mismatch is a tie if the experts that changed places have nearly
equal weights. Where neither does, margins tell nothing of the places inside the top-k, but they tell how
often rounding turns the k-th place over, and the K - 1 places above it are turned over about as often: then
mismatches that nearly all exchange neighbours are ties as long as they are no more frequent than that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.align import Alignment
from moeinspect.analysis.compare.tolerance import Tolerance
from moeinspect.trace.schema import Rows

CASCADE_WEIGHT = 0.25
"""Largest change of a weight after a flip; measured in bf16: 0.26 in one of 20,000 cells."""

_NEIGHBOURS = 0.8
"""Smallest share of exchanges between neighbours; measured in bf16: 0.96. Chance gives 0.4 or less."""

_SWAPS_PER_FLIP = 3.0
"""How many more exchanges than flips a place may see; measured in bf16: 0.5."""


def find_order_ties(
    alignment: Alignment,
    mismatch: NDArray[np.bool_],
    downstream: NDArray[np.bool_],
    tolerance: Tolerance,
    *,
    num_near_ties: int,
) -> NDArray[np.bool_]:
    """Which of the order mismatches [R, L] are ties.

    `downstream` marks cells after an accepted flip, where weights may differ by more; `num_near_ties` is
    the number of sets that rounding turned over at the k-th place.
    """
    ties = np.zeros_like(mismatch)
    row, layer = np.nonzero(mismatch)
    at_a = (alignment.a_row[row], alignment.a_axis[layer])
    at_b = (alignment.b_row[row], alignment.b_axis[layer])
    a, b = alignment.a.rows, alignment.b.rows
    if a.weights is None and b.weights is None:
        top_k = a.expert_ids.shape[2]
        neighbours = _exchanges_neighbours(a.expert_ids[at_a], b.expert_ids[at_b])
        few = len(row) <= _SWAPS_PER_FLIP * (top_k - 1) * (num_near_ties + 1)
        ties[row, layer] = few and neighbours.mean() >= _NEIGHBOURS
        return ties
    limit = np.where(downstream[row, layer], CASCADE_WEIGHT, tolerance.weight)
    ties[row, layer] = _tie_under(a, at_a, b, at_b, limit) & _tie_under(b, at_b, a, at_a, limit)
    return ties


def _exchanges_neighbours(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether two orders of one set [n, K] differ by exchanges of neighbouring slots only."""
    moved = a != b
    swap = (a[:, :-1] == b[:, 1:]) & (a[:, 1:] == b[:, :-1]) & moved[:, :-1]
    in_swap = np.zeros(a.shape, dtype=bool)
    in_swap[:, :-1] |= swap
    in_swap[:, 1:] |= swap
    return np.asarray((in_swap == moved).all(axis=1))


def _tie_under(
    rows: Rows, at: tuple[Any, Any], other: Rows, at_other: tuple[Any, Any], limit: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Whether the other side's weights, which fall from slot to slot, still nearly fall in this order [n].

    A side without weights is no objection.
    """
    if other.weights is None:
        return np.ones(len(limit), dtype=bool)
    order, ids, weights = rows.expert_ids[at], other.expert_ids[at_other], other.weights[at_other]
    falling = (np.diff(weights, axis=1) <= 0).all(axis=1)
    rank = np.argsort(np.argsort(order, axis=1, kind="stable"), axis=1, kind="stable")
    by_id = np.take_along_axis(weights, np.argsort(ids, axis=1, kind="stable"), axis=1)
    rise = np.diff(np.take_along_axis(by_id, rank, axis=1), axis=1)
    with np.errstate(invalid="ignore"):
        return np.asarray(falling & (rise <= limit[:, None]).all(axis=1))
