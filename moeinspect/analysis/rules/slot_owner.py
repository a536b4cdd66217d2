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
    index = np.flatnonzero((view.places.request >= 0) & (rows.slot >= 0)).astype(np.int64)
    slot_key = (rows.worker[index].astype(np.int64) << 32) | rows.slot[index].astype(np.int64)
    step = rows.step[index].astype(np.int64)
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
