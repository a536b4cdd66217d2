"""Which mismatches rounding alone explains.

A *near-tie* is a cell whose sets differ by one expert at a place where the gap between the k-th and the
next expert (`/rows/margin`) is small: within the tolerance of the dtypes, and no wider than the layer's
median gap. If both traces hold margins, both gaps have to be small.

Once a cell has flipped, the token's hidden state is another one: its later layers, and the later layers of
all tokens after it, may flip at wider gaps without any fault. Such a *cascade* cell is accepted only if
the request's first flips, those that no earlier flip precedes, are all near-ties; if one expert differs
(or two, in one flip of a hundred, in more of them where flips are frequent); if its gap is not far above
the layer's median; and if flips of this kind lean to small gaps, all of them and those of the layer. A
fault does not look at gaps, so its cells fail one of these.

Without margins there is no verdict of this kind. Ties in order are `orderties`' matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.align import Alignment
from moeinspect.analysis.cells import gather, num_distinct, slot_columns
from moeinspect.analysis.compare.cellwise import CellResults
from moeinspect.analysis.compare.orderties import CASCADE_WEIGHT, find_order_ties
from moeinspect.analysis.compare.tolerance import Tolerance

# Measured on 553 flips of SGLang 0.5.17 in bf16 against fp32, 23,060 cells of a Qwen3-MoE.

_CASCADE_GAP = 2.5
"""Widest gap of a flip after a flip, in medians of its layer; measured: 2.3."""

_CASCADE_LEAN = 0.5
"""Largest median gap of the flips after a flip, in medians of their layers; measured: 0.06."""

_DOUBLE_FLIPS = 0.01
"""Largest number of cells in which two experts differ, in single flips; measured: 0.002."""

_DOUBLE_PER_SINGLE = 0.5
"""The same where flips are frequent, in single flips times their share of a layer's cells: a second flip in
one cell takes a second near-tie. Drawn from logits with noise, 4 of 32 to 8 of 128 experts, 10 to 24 % of the
cells: 0.14 to 0.21."""

_ENOUGH_OF_A_LAYER = 8
"""Flips after a flip that one layer must have to be asked whether they lean."""


@dataclass(frozen=True, slots=True)
class NearTies:
    """Mismatches that are put down to rounding, arrays [R, L]."""

    has_margins: bool
    near_tie: NDArray[np.bool_]
    """Set mismatches at a small gap."""
    cascade: NDArray[np.bool_]
    """Other set mismatches that follow from a near-tie before them."""
    order_tie: NDArray[np.bool_]
    """Order mismatches between experts of nearly equal weight."""
    weight_cascade: NDArray[np.bool_]
    """Weight mismatches that follow from a near-tie before them."""

    @property
    def explained_sets(self) -> NDArray[np.bool_]:
        """Set mismatches [R, L] that rounding explains."""
        return self.near_tie | self.cascade


def find_near_ties(alignment: Alignment, cells: CellResults, tolerance: Tolerance) -> NearTies:
    """Judges every mismatch; all arrays are False where neither trace holds margins (or weights)."""
    none = np.zeros(cells.set_mismatch.shape, dtype=bool)
    near_tie = cascade = downstream = order_tie = weight_cascade = none
    margin = _margins(alignment)
    if margin is not None and cells.set_mismatch.any():
        median = _median_of_finite(margin)
        one_differs = _experts_differ(alignment, cells, 1)
        near_tie = one_differs & (margin <= np.minimum(tolerance.margin, median))
        downstream = _downstream(alignment, cells.set_mismatch) & _roots_are(near_tie, alignment, cells)
        flips = (one_differs | _rare_double_flips(alignment, cells, one_differs)) & downstream
        cascade = _leaning(flips, margin, median) & ~near_tie
    judged = (
        margin is not None or alignment.a.rows.weights is not None or alignment.b.rows.weights is not None
    )
    if judged and cells.order_mismatch is not None and cells.order_mismatch.any():
        order_tie = find_order_ties(
            alignment, cells.order_mismatch, downstream, tolerance, num_near_ties=int(near_tie.sum())
        )
    if cells.weight_mismatch is not None and downstream.any():
        weight_cascade = _weights_after_flip(alignment, cells.weight_mismatch & downstream)
    return NearTies(margin is not None, near_tie, cascade, order_tie, weight_cascade)


def _margins(alignment: Alignment) -> NDArray[np.float32] | None:
    """The wider gap of the traces that hold margins [R, L]; what is no number counts as infinite."""
    sides = (
        (alignment.a.rows.margin, alignment.a_row, alignment.a_axis),
        (alignment.b.rows.margin, alignment.b_row, alignment.b_axis),
    )
    held = [gather(values, rows, axis) for values, rows, axis in sides if values is not None]
    if not held:
        return None
    widest = np.array(held[0], dtype=np.float32)
    for other in held[1:]:
        np.maximum(widest, other, out=widest)
    np.copyto(widest, np.inf, where=np.isnan(widest))
    return widest


def _median_of_finite(margin: NDArray[np.float32]) -> NDArray[np.float32]:
    """Median gap per layer [L]; 0 for a layer without any, where nothing is near."""
    median = np.zeros(margin.shape[1], dtype=np.float32)
    for layer, column in enumerate(margin.T):
        finite = column[np.isfinite(column)]
        if len(finite):
            median[layer] = np.median(finite)
    return median


def _rare_double_flips(
    alignment: Alignment, cells: CellResults, one_differs: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Mismatches [R, L] by two experts, if there are no more of them than rounding makes."""
    two_differ = _experts_differ(alignment, cells, 2)
    single = one_differs.sum(axis=0)
    share = single / np.maximum(1, cells.compared.sum(axis=0))
    rare = two_differ.sum() <= (single * np.maximum(_DOUBLE_FLIPS, _DOUBLE_PER_SINGLE * share)).sum()
    return np.asarray(two_differ & rare)


def _experts_differ(alignment: Alignment, cells: CellResults, number: int) -> NDArray[np.bool_]:
    """Mismatches [R, L] between two sets of K experts that share all but `number`, and some."""
    ids_a, ids_b = alignment.a.rows.expert_ids, alignment.b.rows.expert_ids
    top_k = ids_a.shape[2]
    candidates = cells.set_mismatch & (cells.overlap == top_k - number)
    if ids_b.shape[2] != top_k or (number > 1 and top_k <= number):
        return np.zeros(candidates.shape, dtype=bool)
    row, layer = np.nonzero(candidates)
    whole = _num_distinct_at(ids_a, alignment.a_row[row], alignment.a_axis[layer]) == top_k
    whole &= _num_distinct_at(ids_b, alignment.b_row[row], alignment.b_axis[layer]) == top_k
    candidates[row, layer] = whole
    return np.asarray(candidates)


def _num_distinct_at(ids: NDArray[Any], row: NDArray[np.int64], axis: NDArray[np.int64]) -> NDArray[np.uint8]:
    return num_distinct(slot_columns(ids[row, axis]))


def _first_flips(alignment: Alignment, mismatch: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Lowest layer place of a mismatch in each row or any row before it in its request [R]; L if none."""
    lowest: NDArray[np.int64] = np.where(mismatch.any(axis=1), mismatch.argmax(axis=1), mismatch.shape[1])
    for pair in range(len(alignment.pairing.pairs)):
        own = alignment.rows_of_pair(pair)
        np.minimum.accumulate(lowest[own], out=lowest[own])
    return lowest


def _downstream(alignment: Alignment, mismatch: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Cells [R, L] that a mismatch in a lower layer of the same or an earlier row may have changed."""
    layer = np.arange(mismatch.shape[1])
    return np.asarray(layer[None, :] > _first_flips(alignment, mismatch)[:, None])


def _roots_are(near_tie: NDArray[np.bool_], alignment: Alignment, cells: CellResults) -> NDArray[np.bool_]:
    """Rows [R, 1] of requests in which every mismatch that nothing precedes is a near-tie."""
    roots = cells.set_mismatch & ~_downstream(alignment, cells.set_mismatch)
    bad_rows = (roots & ~near_tie).any(axis=1)
    bad_pairs = np.bincount(alignment.pair[bad_rows], minlength=len(alignment.pairing.pairs)) > 0
    return np.asarray(~bad_pairs[alignment.pair][:, None])


def _leaning(
    flips: NDArray[np.bool_], margin: NDArray[np.float32], median: NDArray[np.float32]
) -> NDArray[np.bool_]:
    """Those of the flips after a flip [R, L] that may stand, because they lean to small gaps."""
    row, layer = np.nonzero(flips)
    with np.errstate(divide="ignore", invalid="ignore"):
        gap = margin[row, layer] / median[layer]
    stands = np.zeros_like(flips)
    if not len(gap) or not np.median(gap) <= _CASCADE_LEAN:
        return stands
    stands[row, layer] = gap <= _CASCADE_GAP
    for place in np.flatnonzero(np.bincount(layer) >= _ENOUGH_OF_A_LAYER):
        if not np.median(gap[layer == place]) <= _CASCADE_LEAN:
            stands[:, place] = False
    return stands


def _weights_after_flip(alignment: Alignment, mismatch: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Weight mismatches [R, L] after a flip that are no larger than flips make them."""
    small = np.zeros_like(mismatch)
    a, b = alignment.a.rows, alignment.b.rows
    if a.weights is None or b.weights is None:
        return small
    row, layer = np.nonzero(mismatch)
    at_a = (alignment.a_row[row], alignment.a_axis[layer])
    at_b = (alignment.b_row[row], alignment.b_axis[layer])
    weights_a = np.take_along_axis(a.weights[at_a], np.argsort(a.expert_ids[at_a], axis=1), axis=1)
    weights_b = np.take_along_axis(b.weights[at_b], np.argsort(b.expert_ids[at_b], axis=1), axis=1)
    with np.errstate(invalid="ignore"):
        small[row, layer] = (np.abs(weights_a - weights_b) <= CASCADE_WEIGHT).all(axis=1)
    return small
