"""Who held a row's KV slot before: the rows that a forgotten write would leave there."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.rules.view import TraceView


def former_owner_rows(view: TraceView) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of the file [n] and the row [n] that last held the same slot of the same worker before.

    Earlier means an earlier step of the worker. Rows with one slot and one step are one computed row (a
    prefix-cache hit keeps the slot and step of the original). Unknown slots (negative) have no owner.
    """
    rows = view.trace.rows
    when = _half_steps(view)
    index = np.flatnonzero((view.places.request >= 0) & (rows.slot >= 0) & (when >= 0)).astype(np.int64)
    slot_key = (rows.worker[index].astype(np.int64) << 32) | rows.slot[index].astype(np.int64)
    step = when[index]
    order = np.lexsort((index, step, slot_key))
    index, slot_key, step = index[order], slot_key[order], step[order]
    new = np.ones(len(index), dtype=bool)
    new[1:] = (slot_key[1:] != slot_key[:-1]) | (step[1:] != step[:-1])
    holder = np.cumsum(new) - 1
    first = np.flatnonzero(new)
    has_former = np.zeros(len(first), dtype=bool)
    has_former[1:] = slot_key[first[1:]] == slot_key[first[:-1]]
    owned = has_former[holder] if len(holder) else np.zeros(0, dtype=bool)
    return index[owned], index[first[holder[owned] - 1]]


def _half_steps(view: TraceView) -> NDArray[np.int64]:
    """When each row [R] took its slot, in half steps of its worker; -1: unknown.

    A row that its worker never computed (step below 0) took its slot just before the worker's first
    computed step of that request.
    """
    rows, request = view.trace.rows, view.places.request
    when = rows.step.astype(np.int64) * 2
    computed = rows.step >= 0
    if computed.all():
        return when
    key = request * (int(rows.worker.max()) + 1) + rows.worker
    known, inverse = np.unique(key, return_inverse=True)
    first = np.full(len(known), np.iinfo(np.int64).max)
    np.minimum.at(first, inverse[computed], when[computed])
    guessed = np.where(first < np.iinfo(np.int64).max, first - 1, -1)
    return np.where(computed, when, guessed[inverse])
