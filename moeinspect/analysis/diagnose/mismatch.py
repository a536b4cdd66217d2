"""The mismatches of a comparison that still ask for a cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.cells import gather
from moeinspect.analysis.diagnose.facts import RunFacts, knows_workers, run_facts
from moeinspect.analysis.diagnose.provenance import rows_of_findings, zero_rows
from moeinspect.analysis.findings import Finding, LayerStats
from moeinspect.trace.schema import Origin, Trace

if TYPE_CHECKING:  # compare imports this package
    from moeinspect.analysis.align import Alignment
    from moeinspect.analysis.compare.comparison import Comparison
    from moeinspect.analysis.compare.moved import MovedRows

NEARLY_ALL = 0.95

_ABOUT = 0.05
"""Share of experts by which cells that lack one expert may have fewer in common on average."""

_EXPLAINED_ALONE = {"id-out-of-range", "partial-sentinel", "filler-rows"}
"""One-trace rules whose rows hold no routing at all."""


@dataclass(frozen=True)
class Mismatch:
    """Set mismatches that are neither rounding nor rows without routing, which have causes of their own.

    What a cause explains is left out of the question by `without`: it is neither wrong nor right any more.
    """

    comparison: Comparison
    layers: tuple[LayerStats, ...]
    findings: tuple[Finding, ...]
    all_regions: Mapping[str, NDArray[np.bool_]]
    """Rows [R] of each region, in question or not."""
    open_cells: NDArray[np.bool_] | None = None
    """Cells [R, L] in question; None: all but single zero cells, which the rules on zeros explain."""

    def without(self, cells: NDArray[np.bool_]) -> Mismatch:
        """The same with these cells [R, L] out of question."""
        rest = replace(self, open_cells=self.in_question & ~cells)
        rest.__dict__["_without_routing"] = self._without_routing  # what has not changed is costly
        return rest

    def only(self, cells: NDArray[np.bool_]) -> Mismatch:
        """The same with wrong cells, and rows without routing, outside of these [R, L] out of question."""
        return self.without((self.cells | self.unrouted[:, None]) & ~cells)

    @property
    def in_question(self) -> NDArray[np.bool_]:
        """Cells [R, L] that are looked at."""
        return ~self._zero_cells if self.open_cells is None else self.open_cells

    @cached_property
    def rows_in_question(self) -> NDArray[np.bool_]:
        """Rows [R] with such a cell."""
        return np.asarray(self.in_question.any(axis=1))

    @cached_property
    def places_in_question(self) -> NDArray[np.int64]:
        """Places [l] on axis L of the layers with such a cell in a row that holds routing."""
        routed = self.in_question & ~self.unrouted[:, None]
        return np.flatnonzero(routed.any(axis=0)).astype(np.int64)

    @cached_property
    def regions(self) -> Mapping[str, NDArray[np.bool_]]:
        """Rows [R] in question of each region."""
        return {name: rows & self.rows_in_question for name, rows in self.all_regions.items()}

    @property
    def alignment(self) -> Alignment:
        """What was compared."""
        return self.comparison.alignment

    @property
    def a(self) -> Trace:
        """The trace that is judged."""
        return self.comparison.a

    @cached_property
    def facts(self) -> RunFacts:
        """Switches of A's run."""
        return run_facts(self.a)

    @cached_property
    def unrouted(self) -> NDArray[np.bool_]:
        """Rows [R] in question that hold zeros or filler on either side."""
        rows = self._without_routing
        return rows if self.open_cells is None else rows & self.rows_in_question

    @cached_property
    def _without_routing(self) -> NDArray[np.bool_]:
        empty = [
            zero_rows(trace) | rows_of_findings(trace, self._alone(number))
            for number, trace in enumerate((self.a, self.comparison.b))
        ]
        return np.asarray(empty[0][self.alignment.a_row] | empty[1][self.alignment.b_row])

    @cached_property
    def cells(self) -> NDArray[np.bool_]:
        """The cells [R, L]."""
        cells = self.comparison.cells.set_mismatch & ~self.comparison.explained_sets & self.in_question
        return np.asarray(cells & ~self.unrouted[:, None])

    @cached_property
    def _zero_cells(self) -> NDArray[np.bool_]:
        """Cells [R, L] of zeros on either side in rows that hold routing elsewhere."""
        zero = np.zeros(self.comparison.cells.set_mismatch.shape, dtype=bool)
        alignment = self.alignment
        for trace, rows, axis in (
            (alignment.a, alignment.a_row, alignment.a_axis),
            (alignment.b, alignment.b_row, alignment.b_axis),
        ):
            if trace.rows.expert_ids.shape[2] > 1:
                checked = ~np.isin(alignment.layers, trace.model.capture_exempt_layers)
                zero |= checked & ~gather(trace.rows.expert_ids, rows, axis).any(axis=2)
        return zero & ~self._without_routing[:, None]

    @cached_property
    def rows(self) -> NDArray[np.bool_]:
        """Rows [R] with such a cell."""
        return np.asarray(self.cells.any(axis=1))

    def rows_wrong_in(self, share: float) -> NDArray[np.bool_]:
        """Rows [R] of whose compared cells at least this share is wrong; rounding seldom turns over many."""
        compared = np.maximum(1, self.comparison.cells.compared.sum(axis=1))
        return np.asarray(self.cells.sum(axis=1) >= share * compared)

    @cached_property
    def moved(self) -> MovedRows:
        """Whose rows those in question hold that have routing; others are neither moved nor in place."""
        moved = self.comparison.moved
        settled = moved.misplaced & ~self.rows
        return moved.among(self.rows_in_question & ~self.unrouted & ~settled)

    @cached_property
    def by_layer(self) -> NDArray[np.float64]:
        """Share of mismatching cells per layer [L]."""
        compared = np.maximum(1, (self.comparison.cells.compared & self.in_question).sum(axis=0))
        return np.asarray(self.cells.sum(axis=0) / compared)

    @cached_property
    def is_decoded(self) -> NDArray[np.bool_]:
        """Rows [R] that a decode or verify step of A computed; where no row tells, those of output tokens."""
        if not knows_workers(self.a):
            return ~self.alignment.is_prompt
        return np.isin(self.of_a("origin"), (Origin.DECODE, Origin.VERIFY))

    def share_in(self, region: str) -> float:
        """Share of the mismatching rows that stand in a region."""
        return float(self.regions[region][self.rows].mean()) if self.rows.any() else 0.0

    def share_of(self, region: str) -> float:
        """Share of a region's rows that mismatch."""
        return self.share_among(self.regions[region])

    def share_among(self, rows: NDArray[np.bool_]) -> float:
        """Share of these rows [R], as far as they are in question, that mismatch."""
        rows = rows & self.rows_in_question
        return float(self.rows[rows].mean()) if rows.any() else 0.0

    def overlap_at(self, places: NDArray[np.int64]) -> float:
        """Mean share of common experts over the mismatching cells of these layers."""
        cells = self.cells[:, places]
        top_k = max(self.a.model.top_k, self.comparison.b.model.top_k)
        return float(self.comparison.cells.overlap[:, places][cells].mean()) / top_k if cells.any() else 1.0

    @cached_property
    def may_be_rounding(self) -> bool:
        """Wrong cells lack one expert each: what no margin explains may be rounding all the same."""
        top_k = max(self.a.model.top_k, self.comparison.b.model.top_k)
        everywhere = np.arange(len(self.layers), dtype=np.int64)
        return top_k > 2 and self.overlap_at(everywhere) > (top_k - 1) / top_k - _ABOUT

    def of_a(self, column: str) -> NDArray[np.int64]:
        """A column of A's rows (`step`, `slot`, ...), for the comparable rows [R]."""
        values: NDArray[np.integer] = getattr(self.a.rows, column)
        return np.asarray(values[self.alignment.a_row], dtype=np.int64)

    def of_request(self, column: str) -> NDArray[np.int64]:
        """A column of A's requests (`num_retractions`, ...), for the comparable rows [R]."""
        values: NDArray[np.integer] = getattr(self.a.requests, column)
        return np.asarray(values[self.alignment.a_request], dtype=np.int64)

    def ids(self, side: str, rows: NDArray[np.int64]) -> NDArray[np.integer]:
        """Ids [n, L, K] of comparable rows on side `a` or `b`."""
        return self._ids(side, rows, slice(None))

    def ids_in_question(self, side: str, rows: NDArray[np.int64]) -> NDArray[np.integer]:
        """Like `ids`, but of the layers in question alone: [n, l, K]."""
        return self._ids(side, rows, self.places_in_question)

    def _ids(
        self, side: str, rows: NDArray[np.int64], layers: NDArray[np.int64] | slice
    ) -> NDArray[np.integer]:
        alignment = self.alignment
        if side == "a":
            return gather(self.a.rows.expert_ids, alignment.a_row[rows], alignment.a_axis[layers])
        return gather(self.comparison.b.rows.expert_ids, alignment.b_row[rows], alignment.b_axis[layers])

    def found(self, rule: str) -> list[Finding]:
        """Errors and warnings of one rule."""
        return [f for f in self.findings if f.rule == rule and f.severity != "note"]

    def _alone(self, number: int) -> list[Finding]:
        return [f for f in self.findings if f.rule in _EXPLAINED_ALONE and f.input == number]
