"""Findings about cells: other sets, another order, other weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.compare.comparison import Comparison
from moeinspect.analysis.compare.divergence import Divergence
from moeinspect.analysis.compare.regions import chance_overlap
from moeinspect.analysis.compare.runs import Runs, runs_of
from moeinspect.analysis.compare.wording import place_text, region_of
from moeinspect.analysis.findings import Finding, Severity
from moeinspect.analysis.requests import request_evidence


class MismatchFindings:
    """Builds the findings of one comparison; cells that `excused` marks become notes."""

    def __init__(
        self,
        comparison: Comparison,
        first: Divergence | None,
        *,
        tolerated: bool,
    ) -> None:
        self._comparison, self._first, self._tolerated = comparison, first, tolerated
        self._alignment, self._cells = comparison.alignment, comparison.cells
        self._ties, self._tolerance = comparison.ties, comparison.tolerance

    def __iter__(self) -> Iterator[Finding]:
        cells, explained = self._cells, self._comparison.explained_sets
        for part in self._parts(cells.set_mismatch, explained):
            yield from self._sets(part)
        if cells.order_mismatch is not None:
            for part in self._parts(cells.order_mismatch, self._explained_orders):
                yield from self._orders(part)
        if cells.weight_mismatch is not None:
            for part in self._parts(cells.weight_mismatch, self._explained_weights):
                yield from self._weights(part)

    @property
    def _explained_orders(self) -> NDArray[np.bool_]:
        return self._ties.order_tie | self._comparison.within("order")

    @property
    def _explained_weights(self) -> NDArray[np.bool_]:
        return self._ties.weight_cascade | self._comparison.within("weight")

    def _parts(
        self, mismatch: NDArray[np.bool_], explained: NDArray[np.bool_]
    ) -> tuple[NDArray[np.bool_], ...]:
        """Above a noise floor, what exceeds it and what does not: noise beside a fault is not part of it."""
        if self._comparison.floor is None:
            return (mismatch,)
        return mismatch & ~explained, mismatch & explained

    def _sets(self, mismatch: NDArray[np.bool_]) -> Iterator[Finding]:
        cells, ties = self._cells, self._ties
        explained = self._comparison.explained_sets
        runs = runs_of(self._alignment, mismatch)
        overlap = runs.sums(np.where(mismatch, cells.overlap, 0))
        disjoint = runs.sums(mismatch & (cells.overlap == 0))
        near, cascade = runs.sums(ties.near_tie & mismatch), runs.sums(ties.cascade & mismatch)
        chance = chance_overlap(self._alignment)
        for i, (run, count, severity) in enumerate(self._judged(runs, mismatch, explained)):
            mean = float(overlap[i]) / (count * self._top_k)
            evidence: dict[str, Any] = {
                "overlap_mean": mean,
                "chance_overlap": chance,
                "no_common_expert": int(disjoint[i]),
                "near_tie": float(near[i]) / count if ties.has_margins else None,
                "after_flip": float(cascade[i]) / count if ties.has_margins else None,
            }
            common, by_chance = mean * self._top_k, chance * self._top_k
            what = f"another expert set, {common:.1f} of {self._top_k} in common"
            if severity == "note" and near[i] + cascade[i] == count:
                what += ", at a near-tie or after one"
            elif severity == "note" and not self._tolerated:
                what += ", within the noise floor"
            else:
                what += f" (chance {by_chance:.1f})"
            yield self._finding("set-mismatch", severity, what, run, count, mismatch, runs, evidence)

    def _orders(self, mismatch: NDArray[np.bool_]) -> Iterator[Finding]:
        runs = runs_of(self._alignment, mismatch)
        for run, count, severity in self._judged(runs, mismatch, self._explained_orders):
            what = "the same experts in another order"
            severity = "warning" if severity == "error" else severity
            yield self._finding("order-mismatch", severity, what, run, count, mismatch, runs, {})

    def _weights(self, mismatch: NDArray[np.bool_]) -> Iterator[Finding]:
        bound = self._tolerance
        limit = "bit for bit" if bound.bitwise_weights else f"within {bound.weight:g}"
        runs = runs_of(self._alignment, mismatch)
        for run, count, severity in self._judged(runs, mismatch, self._explained_weights):
            what = f"the same experts, their weights not equal {limit}"
            evidence = {"largest_difference": self._largest_difference(run, mismatch)}
            yield self._finding("weight-mismatch", severity, what, run, count, mismatch, runs, evidence)

    def _judged(
        self, runs: Runs, mismatch: NDArray[np.bool_], explained: NDArray[np.bool_]
    ) -> Iterator[tuple[slice, int, Severity]]:
        counts, explained_counts = runs.sums(mismatch), runs.sums(explained & mismatch)
        for run, count, excused in zip(runs, counts.tolist(), explained_counts.tolist(), strict=True):
            yield run, count, "note" if self._tolerated or excused == count else "error"

    def _finding(
        self,
        rule: str,
        severity: Severity,
        what: str,
        run: slice,
        count: int,
        mismatch: NDArray[np.bool_],
        runs: Runs,
        evidence: dict[str, Any],
    ) -> Finding:
        alignment = self._alignment
        pair = int(alignment.pair[run.start])
        request = alignment.pairing.pairs[pair][0]
        start_pos = int(alignment.a.requests.start_pos[request])
        first, last = int(alignment.position[run.start]), int(alignment.position[run.stop - 1]) + 1
        evidence = {"positions": [first, last]} | evidence | request_evidence(alignment.a, request)
        if runs.merged:
            evidence["merged"] = True
        if self._first is not None and self._first.is_in(run, rule):
            evidence["first_divergence"] = self._first.as_evidence()
        rows = (first - start_pos, last - start_pos)
        layers = tuple(int(x) for x in alignment.layers[mismatch[run].any(axis=0)])
        region = region_of(first, last, int(alignment.a.requests.prompt_len[request]))
        return Finding(
            rule=rule,
            severity=severity,
            message=f"{place_text(rows, region, layers, len(alignment.layers))}: {what}",
            count=count,
            request=alignment.request_id(pair),
            rows=rows,
            layers=layers,
            region=region,
            evidence=evidence,
        )

    @property
    def _top_k(self) -> int:
        return max(self._alignment.a.model.top_k, self._alignment.b.model.top_k)

    def _largest_difference(self, run: slice, mismatch: NDArray[np.bool_]) -> float | None:
        """Largest difference of two weights of one expert in a run; None if one is no number."""
        alignment = self._alignment
        row, layer = np.nonzero(mismatch[run])
        row += run.start
        sides = []
        for trace, rows, axis in (
            (alignment.a, alignment.a_row, alignment.a_axis),
            (alignment.b, alignment.b_row, alignment.b_axis),
        ):
            weights = trace.rows.weights
            if weights is None:
                return None
            by_id = np.argsort(trace.rows.expert_ids[rows[row], axis[layer]], axis=1, kind="stable")
            sides.append(np.take_along_axis(weights[rows[row], axis[layer]], by_id, axis=1))
        largest = float(np.abs(sides[0] - sides[1]).max())
        return largest if np.isfinite(largest) else None
