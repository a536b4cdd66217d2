"""Compares every cell that two traces have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.align import Alignment
from moeinspect.analysis.cells import gather, num_distinct, overlap_of, slot_columns
from moeinspect.analysis.compare.tolerance import Tolerance
from moeinspect.analysis.exempt import exempt_in_either, is_captured

_CELLS_PER_BLOCK = 1 << 18
"""Keeps a block's slot columns in the processor's cache."""


@dataclass(frozen=True, slots=True)
class CellResults:
    """What differs, per comparable row and common MoE layer: arrays [R, L].

    A cell with another set is neither an order nor a weight mismatch.
    """

    compared: NDArray[np.bool_]
    """False where an exempt layer was not captured on one side."""
    overlap: NDArray[np.uint8]
    """|A and B| as sets."""
    set_mismatch: NDArray[np.bool_]
    order_mismatch: NDArray[np.bool_] | None
    """None: order is not comparable, because not both traces hold router order."""
    weight_mismatch: NDArray[np.bool_] | None
    """None: not both traces hold weights."""

    @property
    def any_mismatch(self) -> NDArray[np.bool_]:
        """Cells [R, L] that differ in any way."""
        mismatch = self.set_mismatch
        for kind in (self.order_mismatch, self.weight_mismatch):
            if kind is not None:
                mismatch = mismatch | kind
        return mismatch


def compare_cells(alignment: Alignment, tolerance: Tolerance) -> CellResults:
    """Compares all cells, in blocks, without copying either trace as a whole."""
    a, b = alignment.a, alignment.b
    shape = (len(alignment), len(alignment.layers))
    same_width = a.rows.expert_ids.shape[2] == b.rows.expert_ids.shape[2]
    with_order = same_width and a.run.slot_order == b.run.slot_order == "router"
    with_weights = same_width and a.rows.weights is not None and b.rows.weights is not None
    results = CellResults(
        compared=_compared_cells(alignment),
        overlap=np.zeros(shape, dtype=np.uint8),
        set_mismatch=np.zeros(shape, dtype=bool),
        order_mismatch=np.zeros(shape, dtype=bool) if with_order else None,
        weight_mismatch=np.zeros(shape, dtype=bool) if with_weights else None,
    )
    step = max(1, _CELLS_PER_BLOCK // shape[1])
    for start in range(0, shape[0], step):
        _compare_block(alignment, tolerance, results, slice(start, start + step))
    for mismatch in (results.set_mismatch, results.order_mismatch, results.weight_mismatch):
        if mismatch is not None:
            mismatch &= results.compared
    return results


def _compared_cells(alignment: Alignment) -> NDArray[np.bool_]:
    """All cells, but where a layer is exempt from capture, only those that both sides captured."""
    shape = (len(alignment), len(alignment.layers))
    a, b = alignment.a, alignment.b
    exempt = np.isin(alignment.layers, exempt_in_either(a.model, b.model)).nonzero()[0]
    if not len(exempt):
        return np.broadcast_to(np.True_, shape)
    compared = np.ones(shape, dtype=bool)
    for trace, rows, axis in (
        (a, alignment.a_row, alignment.a_axis),
        (b, alignment.b_row, alignment.b_axis),
    ):
        compared[:, exempt] &= is_captured(gather(trace.rows.expert_ids, rows, axis[exempt]), trace.model)
    return compared


def _compare_block(alignment: Alignment, tolerance: Tolerance, results: CellResults, block: slice) -> None:
    ids_a = _flat(gather(alignment.a.rows.expert_ids, alignment.a_row[block], alignment.a_axis))
    ids_b = _flat(gather(alignment.b.rows.expert_ids, alignment.b_row[block], alignment.b_axis))
    shape = results.overlap[block].shape
    same = _same_cells(ids_a, ids_b)
    overlap, mismatch = _compare_sets(ids_a, ids_b, np.flatnonzero(~same))
    reordered = ~same & ~mismatch
    results.overlap[block] = overlap.reshape(shape)
    results.set_mismatch[block] = mismatch.reshape(shape)
    if results.order_mismatch is not None:
        results.order_mismatch[block] = reordered.reshape(shape)
    weights = _weights_of(alignment, block)
    if results.weight_mismatch is not None and weights is not None:
        differs = _weights_differ(*weights, tolerance)
        again = np.flatnonzero(reordered)
        by_id = [_sorted_by_id(w[again], ids[again]) for w, ids in zip(weights, (ids_a, ids_b), strict=True)]
        differs[again] = _weights_differ(by_id[0], by_id[1], tolerance)
        results.weight_mismatch[block] = (differs & ~mismatch).reshape(shape)


def _compare_sets(
    ids_a: NDArray[Any], ids_b: NDArray[Any], differing: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Overlap and set mismatch of cells [n, K], of which only `differing` are not identical."""
    columns_a = slot_columns(ids_a)
    distinct = num_distinct(columns_a)
    overlap, mismatch = distinct.copy(), np.zeros(len(ids_a), dtype=bool)
    if len(differing):
        columns_b = slot_columns(ids_b[differing])
        overlap[differing] = overlap_of(columns_a[:, differing], columns_b)
        mismatch[differing] = overlap[differing] != distinct[differing]
        mismatch[differing] |= overlap[differing] != num_distinct(columns_b)
    return overlap, mismatch


def _weights_of(alignment: Alignment, block: slice) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
    a, b = alignment.a.rows.weights, alignment.b.rows.weights
    if a is None or b is None:
        return None
    return (
        _flat(gather(a, alignment.a_row[block], alignment.a_axis)).astype(np.float32, copy=False),
        _flat(gather(b, alignment.b_row[block], alignment.b_axis)).astype(np.float32, copy=False),
    )


def _sorted_by_id(weights: NDArray[np.float32], ids: NDArray[Any]) -> NDArray[np.float32]:
    return np.take_along_axis(weights, np.argsort(ids, axis=1, kind="stable"), axis=1)


def _flat(values: NDArray[Any]) -> NDArray[Any]:
    """[n, L, K] as cells [n * L, K]."""
    return np.ascontiguousarray(values).reshape(-1, values.shape[-1])


def _same_cells(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether cells [n, K] hold the same ids in the same order [n]."""
    if a.shape[1] != b.shape[1]:
        return np.zeros(len(a), dtype=bool)
    width = a.shape[1] * a.dtype.itemsize
    if a.dtype == b.dtype and width in (1, 2, 4, 8):
        word = np.dtype(f"u{width}")
        same: NDArray[np.bool_] = a.view(word)[:, 0] == b.view(word)[:, 0]
        return same
    return np.asarray((a == b).all(axis=1))


def _weights_differ(a: NDArray[Any], b: NDArray[Any], tolerance: Tolerance) -> NDArray[np.bool_]:
    """Whether weights [n, K] differ by more than the tolerance, in any slot [n]; NaN always differs."""
    if tolerance.bitwise_weights:
        return np.asarray((a.view(np.uint32) != b.view(np.uint32)).any(axis=1))
    with np.errstate(invalid="ignore"):
        return ~np.asarray((np.abs(a - b) <= tolerance.weight).all(axis=1))
