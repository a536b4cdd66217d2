"""`id-out-of-range` and `partial-sentinel`: values that are no expert's id in rows that claim to be real."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.findings import Finding
from moeinspect.analysis.rules.grouping import CellRun, findings_of
from moeinspect.analysis.rules.view import TraceView
from moeinspect.trace.schema import Validity

SENTINEL_VALUE = -1
"""What producers mean by "no id"; a trace keeps it as an invalid cell."""


@dataclass(frozen=True, slots=True)
class OddSlots:
    """Slots that hold no expert's id, one entry each: row of the file, place on axis M, slot, value."""

    row: NDArray[np.int64]
    place: NDArray[np.int64]
    slot: NDArray[np.int64]
    value: NDArray[np.int64]
    sentinel: NDArray[np.bool_]
    """The value is "no id" rather than a wrong id."""

    def sorted_by_row(self) -> OddSlots:
        """The same slots in file order."""
        order = np.argsort(self.row, kind="stable")
        return OddSlots(
            self.row[order], self.place[order], self.slot[order], self.value[order], self.sentinel[order]
        )


def check_id_range(view: TraceView) -> list[Finding]:
    """Ids at or above the number of experts, invalid values, and rows in which only a part is absent.

    The sentinel (-1, or the dtype's maximum where that is no expert's id) is no wrong id. A row that mixes
    it with real ids is a `partial-sentinel`; a row of nothing else, claimed to be real, is out of range.
    A row declared invalid without any such value counts as out of range with all its cells.
    """
    if not _anything_odd(view):
        return []
    odd = _odd_slots(view)
    wrong, absent = np.zeros(view.flagged.shape, dtype=bool), np.zeros(view.flagged.shape, dtype=bool)
    wrong[odd.row[~odd.sentinel], odd.place[~odd.sentinel]] = True
    absent[odd.row[odd.sentinel], odd.place[odd.sentinel]] = True
    absent[:, view.exempt] = False
    wrong |= absent & _rows_without_ids(view, odd)[:, None]
    wrong |= _unexplained(view, odd)[:, None]
    view.unreadable = np.asarray((wrong | absent)[:, ~view.exempt].any(axis=1), dtype=np.bool_)
    odd = odd.sorted_by_row()

    def evidence(run: CellRun) -> dict[str, Any]:
        part = slice(*np.searchsorted(odd.row, [run.first, run.last]).tolist())
        here = np.isin(odd.place[part], run.places)
        return {"values": np.unique(odd.value[part][here])[:8].tolist(), "num_experts": view.num_experts}

    def wrong_ids(run: CellRun) -> tuple[str, Mapping[str, Any]]:
        seen = evidence(run)
        values = ", ".join(map(str, seen["values"])) or "declared invalid"
        return f"not ids of {view.num_experts} experts: {values}", seen

    rows = view.checked[:, None]
    found = findings_of(view, view.claim(wrong & rows), "id-out-of-range", "error", wrong_ids)
    text = '"no id" in rows that also hold real ids'
    return found + findings_of(
        view, view.claim(absent & rows), "partial-sentinel", "error", lambda run: (text, evidence(run))
    )


def _anything_odd(view: TraceView) -> bool:
    """Whether there is anything to look at; most traces have nothing."""
    rows = view.trace.rows
    declared = bool((rows.validity == Validity.INVALID).any())
    return declared or len(rows.invalid_cells.row) > 0 or bool(view.facts.out_of_range.any())


def _odd_slots(view: TraceView) -> OddSlots:
    """Every slot of the checked rows whose value is no expert's id, with the value it had at first."""
    stored_max = int(np.iinfo(view.ids.dtype).max)
    cells = np.argwhere(view.facts.out_of_range & view.checked[:, None])
    row, place = cells[:, 0], cells[:, 1]
    ids = view.ids[row, place].astype(np.int64)
    bad = (ids >= view.num_experts) | (ids < 0)
    cell, slot = np.nonzero(bad)
    value = ids[cell, slot]
    sentinel = (value == stored_max) | (value == SENTINEL_VALUE)
    stored = OddSlots(row[cell], place[cell], slot.astype(np.int64), value, sentinel)
    return _with_originals(view, stored)


def _with_originals(view: TraceView, stored: OddSlots) -> OddSlots:
    """Adds what `/rows/invalid_cells` knows; its value counts where both name a slot."""
    cells = view.trace.rows.invalid_cells
    if not len(cells.row):
        return stored
    place_of = {layer: place for place, layer in enumerate(view.layers.tolist())}
    place = np.asarray([place_of.get(layer, -1) for layer in cells.layer.tolist()], dtype=np.int64)
    R, _, K = view.ids.shape
    known = (place >= 0) & (cells.row >= 0) & (cells.row < R) & (cells.slot >= 0) & (cells.slot < K)
    known[known] = view.checked[cells.row[known]]
    row, place = cells.row[known].astype(np.int64), place[known]
    slot, value = cells.slot[known].astype(np.int64), cells.value[known].astype(np.int64)
    kept = ~np.isin(_keys(view, stored.row, stored.place, stored.slot), _keys(view, row, place, slot))
    return OddSlots(
        row=np.concatenate([stored.row[kept], row]),
        place=np.concatenate([stored.place[kept], place]),
        slot=np.concatenate([stored.slot[kept], slot]),
        value=np.concatenate([stored.value[kept], value]),
        sentinel=np.concatenate([stored.sentinel[kept], value == SENTINEL_VALUE]),
    )


def _keys(
    view: TraceView, row: NDArray[np.int64], place: NDArray[np.int64], slot: NDArray[np.int64]
) -> NDArray[np.int64]:
    _, M, K = view.ids.shape
    keys: NDArray[np.int64] = (row * M + place) * K + slot
    return keys


def _rows_without_ids(view: TraceView, odd: OddSlots) -> NDArray[np.bool_]:
    """Rows [R] that hold no real id in any checked layer."""
    R, _, K = view.ids.shape
    checked = ~view.exempt[odd.place]
    per_row = np.bincount(odd.row[checked], minlength=R)
    without: NDArray[np.bool_] = (per_row == len(view.checked_layers) * K) & (per_row > 0)
    return without


def _unexplained(view: TraceView, odd: OddSlots) -> NDArray[np.bool_]:
    """Checked rows [R] that are declared invalid though no value of theirs is odd."""
    declared = view.trace.rows.validity == Validity.INVALID
    explained = np.zeros(len(declared), dtype=bool)
    explained[odd.row] = True
    unexplained: NDArray[np.bool_] = declared & ~explained
    return unexplained
