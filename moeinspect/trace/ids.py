"""Expert ids between the integer type they come in and the one a trace holds; never wrapped.

A trace holds ids in the smallest type that fits (`ModelFacts.id_dtype`). A value that has no place there
is replaced by that type's maximum, its row becomes invalid, and the original value is kept beside the ids.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeinspect.trace.schema import InvalidCells, ModelFacts, Validity

_INT64_MAX = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, slots=True)
class HeldIds:
    """Ids [R, L, K] in the trace's dtype, validity [R], and the values that did not fit.

    `cells.row` counts from the first of these rows, `cells.layer` is an absolute layer index.
    """

    ids: NDArray[Any]
    validity: NDArray[np.uint8]
    cells: InvalidCells


def dense_positions(model: ModelFacts) -> NDArray[np.bool_]:
    """Which positions of axis 1 of the ids are dense layers [L]; none where the axis counts MoE layers."""
    dense = np.zeros(model.num_captured_layers, dtype=np.bool_)
    if model.layer_axis == "all":
        dense[:] = True
        dense[list(model.moe_layers)] = False
    return dense


def store(ids: NDArray[Any], validity: NDArray[np.uint8], model: ModelFacts) -> HeldIds:
    """Ids [n, L, K] of any integer type as the writer stores them.

    Missing rows and dense layers hold the sentinel whatever was given. Elsewhere a value that is negative
    or larger than the dtype's maximum is kept in `cells` and its row gets validity 3. The result may share
    memory with what is given.
    """
    held = _hold(ids, validity, model, _outside(ids, 0, model.sentinel))
    dense = dense_positions(model)
    if not dense.any():
        return held
    filled = np.where(dense[:, np.newaxis], model.id_dtype.type(model.sentinel), held.ids)
    return replace(held, ids=filled)


def canonical(ids: NDArray[Any], validity: NDArray[np.uint8], model: ModelFacts) -> HeldIds:
    """Ids [R, L, K] that another producer stored in a type of its choice, in the trace's own type.

    Like `store`, with one more case: in a wider type the trace's sentinel is an ordinary number, so where
    it is no expert's id it is kept in `cells`, too, lest it read as "no id". In a narrower type that
    type's maximum is a sentinel in missing rows and dense layers only. Ids already in the trace's type are
    returned as they are.
    """
    if ids.dtype == model.id_dtype:
        return HeldIds(ids, validity, no_cells())
    largest = model.sentinel if model.num_experts > model.sentinel else model.sentinel - 1
    held = _hold(ids, validity, model, _outside(ids, 0, largest))
    dense = dense_positions(model)
    if dense.any():
        none = int(np.iinfo(ids.dtype).max)
        sentinel = model.id_dtype.type(model.sentinel)
        return replace(held, ids=np.where((ids == none) & dense[:, np.newaxis], sentinel, held.ids))
    return held


def no_cells() -> InvalidCells:
    """No invalid cell."""
    empty32, empty64 = np.zeros(0, np.int32), np.zeros(0, np.int64)
    return InvalidCells(row=empty64, layer=empty32, slot=empty32, value=empty64)


def _outside(ids: NDArray[Any], smallest: int, largest: int) -> NDArray[np.bool_] | None:
    """Where ids [n, L, K] lie outside the range; None when nowhere, which is the usual and fast case."""
    limits = np.iinfo(ids.dtype)
    if ids.size == 0 or (limits.min >= smallest and limits.max <= largest):
        return None
    if int(ids.min()) >= smallest and int(ids.max()) <= largest:
        return None
    # Both limits lie inside the type's own range where they are compared, so nothing wraps here either.
    bad = np.zeros(ids.shape, dtype=np.bool_)
    if limits.min < smallest:
        bad |= ids < smallest
    if limits.max > largest:
        bad |= ids > largest
    return bad


def _hold(
    ids: NDArray[Any], validity: NDArray[np.uint8], model: ModelFacts, bad: NDArray[np.bool_] | None
) -> HeldIds:
    missing = validity == Validity.MISSING
    if bad is None and not missing.any():
        return HeldIds(ids.astype(model.id_dtype, copy=False), validity, no_cells())
    held = ids.astype(model.id_dtype)
    held[missing] = model.sentinel
    if bad is None:
        return HeldIds(held, validity, no_cells())
    held[bad] = model.sentinel
    bad[missing] = False
    bad[:, dense_positions(model)] = False
    row, position, slot = np.nonzero(bad)
    values = ids[row, position, slot]
    if values.dtype == np.uint64:
        values = np.minimum(values, np.uint64(_INT64_MAX))
    validity = np.where(bad.any(axis=(1, 2)), np.uint8(Validity.INVALID), validity).astype(np.uint8)
    layers = model.layer_indices()
    return HeldIds(
        held,
        validity,
        InvalidCells(
            row=row.astype(np.int64),
            layer=layers[position].astype(np.int32),
            slot=slot.astype(np.int32),
            value=values.astype(np.int64),
        ),
    )
