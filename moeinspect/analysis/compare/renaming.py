"""Looks for layers in which A's ids are names of B's experts that change during the run.

That is what physical ids of expert placement are: an expert with copies has several names, and every
rebalance gives all of them anew. Between two changes one name always stands for one expert, so it does
from one use of the name to the next, hardly ever otherwise. Slots of a cell correspond, as both traces hold
router order; nothing has to be known of when the names change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.align import Alignment
from moeinspect.analysis.cells import gather, set_keys
from moeinspect.analysis.compare.cellwise import CellResults

_MIN_MISMATCHES = 16
_MIN_USES = 32
"""Uses of a name, after another use of it in another cell, that a layer must have."""

_KEPT = 0.6
"""Share of them in which the name has to stand for the same expert again: few do by chance, and not all can
where a name has few uses between two changes."""

_EXPLAINED = 0.8
"""Share of the mismatching cells in which every name stands for the same expert as a use before or after."""

_BLOCK_ROWS = 1024
_MAX_BLOCKS = 32


@dataclass(frozen=True, slots=True)
class NameChange:
    """A worker's names changed between the forwards of two steps."""

    worker: int
    after: int
    before: int


@dataclass(frozen=True, slots=True)
class LayerRenaming:
    """One layer whose names change. `names` are ids that A uses, `experts` those of B that they stand for."""

    place: int
    """Place of the layer among the common layers."""
    names: int
    experts: int
    kept: float
    """Share of uses of a name in which it stands for the same expert as at its last use."""
    explained: float
    """Share of the mismatching cells that such names explain."""


@dataclass(frozen=True, slots=True)
class _Uses:
    """Uses of names in one layer, arrays [n], sorted by name and then by time."""

    block: NDArray[np.int64]
    name: NDArray[np.int64]
    expert: NDArray[np.int64]
    row: NDArray[np.int64]
    """Row in the order of time."""
    cell: NDArray[np.uint64]
    """Key of B's cell: a name that is used again in an equal cell says nothing."""


def find_renamings(
    alignment: Alignment, cells: CellResults, without: Sequence[int] = ()
) -> tuple[list[LayerRenaming], list[NameChange]]:
    """Layers, other than the places `without`, whose mismatches changing names explain; and the changes.

    Of long traces, stretches of time are looked at, so that not all changes are seen there.
    """
    a, b = alignment.a, alignment.b
    in_order = a.run.slot_order == b.run.slot_order == "router"
    if not in_order or a.rows.expert_ids.shape[2] != b.rows.expert_ids.shape[2]:
        return [], []
    wanted = np.flatnonzero(cells.set_mismatch.sum(axis=0) >= _MIN_MISMATCHES)
    wanted = wanted[~np.isin(wanted, without)]
    if not len(wanted):
        return [], []
    rows, block = _rows_in_time(alignment)
    found, intervals = [], []
    for place in wanted.tolist():
        uses = _uses_of(alignment, place, rows, block)
        mismatch = cells.set_mismatch[rows, place]
        renaming, changed = _judge(place, uses, mismatch)
        if renaming is not None:
            found.append(renaming)
            intervals.append(changed)
    return found, _changes(alignment, rows, intervals)


def _rows_in_time(alignment: Alignment) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Comparable rows [n] by worker and step, whole blocks of them if there are many, and their block."""
    columns = alignment.a.rows
    step, worker = columns.step[alignment.a_row], columns.worker[alignment.a_row]
    order = np.lexsort((alignment.a_row, step, worker)).astype(np.int64)
    block = worker[order].astype(np.int64)
    if len(order) > _BLOCK_ROWS * _MAX_BLOCKS:
        number = np.arange(len(order)) // _BLOCK_ROWS
        chosen = np.unique(np.linspace(0, number[-1], _MAX_BLOCKS).astype(np.int64))
        kept = np.isin(number, chosen)
        order, block = order[kept], block[kept] * (int(number[-1]) + 1) + number[kept]
    return order, block


def _uses_of(alignment: Alignment, place: int, rows: NDArray[np.int64], block: NDArray[np.int64]) -> _Uses:
    layer = slice(place, place + 1)
    a, b = alignment.a, alignment.b
    ids_a = gather(a.rows.expert_ids, alignment.a_row[rows], alignment.a_axis[layer])[:, 0].astype(np.int64)
    ids_b = gather(b.rows.expert_ids, alignment.b_row[rows], alignment.b_axis[layer])[:, 0].astype(np.int64)
    top_k = ids_a.shape[1]
    cell = np.repeat(set_keys(ids_b), top_k)
    row = np.repeat(np.arange(len(rows), dtype=np.int64), top_k)
    name, expert, block = ids_a.reshape(-1), ids_b.reshape(-1), np.repeat(block, top_k)
    order = np.lexsort((row, name, block))
    return _Uses(block[order], name[order], expert[order], row[order], cell[order])


def _judge(
    place: int, uses: _Uses, mismatch: NDArray[np.bool_]
) -> tuple[LayerRenaming | None, NDArray[np.int64]]:
    """The renaming, if there is one, and the rows [m, 2] between which a name changed its expert."""
    same_name = (uses.name[1:] == uses.name[:-1]) & (uses.block[1:] == uses.block[:-1])
    same_expert = uses.expert[1:] == uses.expert[:-1]
    renamed = uses.name != uses.expert
    tells = same_name & (uses.cell[1:] != uses.cell[:-1]) & (renamed[1:] | renamed[:-1])
    nothing = np.zeros((0, 2), dtype=np.int64)
    if tells.sum() < _MIN_USES:
        return None, nothing
    agrees = tells & same_expert
    supported = ~renamed
    supported[1:] |= same_name & same_expert
    supported[:-1] |= same_name & same_expert
    unsupported = np.zeros(len(mismatch), dtype=bool)
    unsupported[uses.row[~supported]] = True
    kept, explained = float(agrees.sum() / tells.sum()), float((~unsupported)[mismatch].mean())
    if kept < _KEPT or explained < _EXPLAINED:
        return None, nothing
    # A change counts between two uses that other uses confirm: one of rounding is alone.
    firm = supported[:-1] & supported[1:]
    changed = np.flatnonzero(same_name & ~same_expert & firm)
    renaming = LayerRenaming(place, len(np.unique(uses.name)), len(np.unique(uses.expert)), kept, explained)
    return renaming, np.stack([uses.row[changed], uses.row[changed + 1]], axis=1)


def _changes(
    alignment: Alignment, rows: NDArray[np.int64], intervals: list[NDArray[np.int64]]
) -> list[NameChange]:
    """The fewest changes that explain all `intervals` of rows, with the steps around each."""
    if not intervals:
        return []
    columns = alignment.a.rows
    step, worker = columns.step[alignment.a_row[rows]], columns.worker[alignment.a_row[rows]]
    between = np.concatenate(intervals)
    between = between[np.argsort(between[:, 1], kind="stable")]
    found: list[NameChange] = []
    low, high = -1, -1
    for first, last in between.tolist():
        if found and first < high:
            low, high = max(low, first), min(high, last)
            found[-1] = NameChange(int(worker[high]), int(step[low]), int(step[high]))
        else:
            low, high = first, last
            found.append(NameChange(int(worker[high]), int(step[low]), int(step[high])))
    return found
