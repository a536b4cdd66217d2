"""`constant-column`: one id in one slot, row after row; a column that no router chose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.findings import Finding
from moeinspect.analysis.rules.chance import LOG10_LIMIT, log10
from moeinspect.analysis.rules.column_shares import largest_share
from moeinspect.analysis.rules.grouping import CellRun, findings_of
from moeinspect.analysis.rules.runs import true_runs
from moeinspect.analysis.rules.view import TraceView

MIN_ROWS = 32
MAX_SHARE = 0.5
MAX_SHARE_AT_TOP = 0.25
MIN_OTHERS_AT_TOP = 8
"""Stricter where one expert that is always ranked best, or experts that always are, would explain it: a
smaller share, and enough other slots to know it from."""
BLOCK = 16
"""Every run of `MIN_ROWS` rows holds a whole aligned block of this many."""


@dataclass(frozen=True, slots=True)
class ColumnRun:
    """Rows [first, last) of the file in which one slot of one layer never changes."""

    place: int
    slot: int
    first: int
    last: int

    def rows(self, readable: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The readable rows of the run."""
        return (self.first + np.flatnonzero(readable[self.first : self.last])).astype(np.int64)


def check_constant_column(view: TraceView) -> list[Finding]:
    """A slot that never changes over a whole trace, or over 32 or more rows of a request.

    Rows that other rules counted are passed over. Chance is judged by the largest share that one id has in
    any other slot of the trace over a like number of rows; where that is large, experts are used so
    unevenly that a slot which never changes may be healthy, and nothing is said.
    """
    readable = view.whole_rows()
    runs = _whole_trace_runs(view, readable) or _request_runs(view, readable)
    if not runs:
        return []
    share = largest_share(view, readable, [(run.place, run.slot, run.first, run.last) for run in runs])
    runs = [run for run in runs if share <= _tolerable_share(view, run, runs)]
    cells = np.zeros(view.flagged.shape, dtype=bool)
    chance: dict[ColumnRun, float] = {}
    for run in runs:
        rows = run.rows(readable)
        chance[run] = _chance_log10(view, rows, share)
        if chance[run] < LOG10_LIMIT:
            cells[rows, run.place] = True

    def describe(found: CellRun) -> tuple[str, Mapping[str, Any]]:
        here = [
            run
            for run in runs
            if chance[run] < LOG10_LIMIT and run.place in found.places and run.first <= found.first < run.last
        ]
        columns = [
            {
                "layer": int(view.layers[run.place]),
                "slot": run.slot,
                "id": int(view.ids[found.first, run.place, run.slot]),
            }
            for run in here
        ]
        worst = max(chance[run] for run in here)
        return _text(columns), {
            "columns": columns[:16],
            "largest_share": round(share, 3),
            "chance_log10": round(worst, 1),
        }

    return findings_of(view, view.claim(cells), "constant-column", "warning", describe)


def _tolerable_share(view: TraceView, run: ColumnRun, runs: list[ColumnRun]) -> float:
    """How large the largest share elsewhere may be for this run to count.

    A favourite expert stands in the best slot. So a constant slot below one that changes is no favourite,
    and neither is one id in this slot of every layer, as layers number their experts independently.
    """
    spans = {(other.place, other.slot): other for other in runs if other.first <= run.first < other.last}
    ranked = view.trace.run.slot_order == "router"
    below_a_changing_one = ranked and any((run.place, slot) not in spans for slot in range(run.slot))
    same = [spans.get((place, run.slot)) for place in view.checked_layers.tolist()]
    expert = view.ids[run.first, run.place, run.slot]
    everywhere = len(same) > 1 and all(
        other is not None and view.ids[run.first, other.place, other.slot] == expert for other in same
    )
    if below_a_changing_one or everywhere:
        return MAX_SHARE
    others = len(view.checked_layers) * view.top_k - len(spans)
    return MAX_SHARE_AT_TOP if others >= MIN_OTHERS_AT_TOP else 0.0


def _whole_trace_runs(view: TraceView, readable: NDArray[np.bool_]) -> list[ColumnRun]:
    """Slots that hold one id in every readable row of the trace."""
    rows = np.flatnonzero(readable)
    if len(rows) < MIN_ROWS:
        return []
    constant = np.ones(view.ids.shape[1:], dtype=bool)
    constant[view.exempt] = False
    for part in np.array_split(rows, max(1, len(rows) >> 12)):
        constant &= (view.ids[part] == view.ids[rows[0]]).all(axis=0)
        if not constant.any():
            return []
    return [
        ColumnRun(place, slot, int(rows[0]), int(rows[-1]) + 1)
        for place, slot in np.argwhere(constant).tolist()
    ]


def _request_runs(view: TraceView, readable: NDArray[np.bool_]) -> list[ColumnRun]:
    """Runs of 32 or more rows of one request in which a slot never changes."""
    found = []
    for place, slot in _columns_with_constant_blocks(view, readable):
        column = view.ids[:, place, slot]
        joined = view.joined.copy()
        joined[1:] &= column[1:] == column[:-1]
        firsts, lasts = true_runs(readable, joined)
        long = lasts - firsts >= MIN_ROWS
        pairs = zip(firsts[long].tolist(), lasts[long].tolist(), strict=True)
        found += [ColumnRun(place, slot, first, last) for first, last in pairs]
    return found


def _columns_with_constant_blocks(view: TraceView, readable: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Slots with an aligned block of equal ids; most traces have none, so this is a quick way out."""
    R, M, K = view.ids.shape
    count = R // BLOCK
    blocks = np.flatnonzero(readable[: count * BLOCK].reshape(count, BLOCK).all(axis=1))
    by_block = view.ids[: count * BLOCK].reshape(count, BLOCK, M, K)
    constant = np.zeros((M, K), dtype=bool)
    for part in np.array_split(blocks, max(1, len(blocks) * BLOCK * M * K >> 22)):
        ids = by_block[part]
        constant |= (ids[:, 1:] == ids[:, :1]).all(axis=1).any(axis=0)
    constant[view.exempt] = False
    return [(place, slot) for place, slot in np.argwhere(constant).tolist()]


def _chance_log10(view: TraceView, rows: NDArray[np.int64], share: float) -> float:
    """Chance of such a run anywhere: each different token but the first must choose the same id again."""
    tokens = len(np.unique(view.places.token[rows]))
    places = log10(float(view.ids[:, :, 0].size * view.top_k))
    return min(0.0, places + (tokens - 1) * log10(share))


def _text(columns: list[dict[str, int]]) -> str:
    kinds = sorted({(column["slot"], column["id"]) for column in columns})
    shown = ", ".join(f"slot {slot} is always expert {expert}" for slot, expert in kinds[:4])
    return shown + (f" and {len(kinds) - 4} more" if len(kinds) > 4 else "")
