"""The report of `diff`: pairs two traces, compares what they share, and judges what differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.compare.cellwise import CellResults
from moeinspect.analysis.compare.comparison import Comparison, compare
from moeinspect.analysis.compare.divergence import first_divergence
from moeinspect.analysis.compare.floorfindings import floor_findings, with_floor
from moeinspect.analysis.compare.mismatches import MismatchFindings
from moeinspect.analysis.compare.models import machine_note, model_findings
from moeinspect.analysis.compare.onesided import one_sided_findings
from moeinspect.analysis.compare.permutation import find_permutations
from moeinspect.analysis.compare.regions import layer_stats, region_rows
from moeinspect.analysis.compare.renaming import find_renamings
from moeinspect.analysis.compare.shifts import find_layer_shifts, find_row_shifts
from moeinspect.analysis.compare.structure import (
    layer_shift_findings,
    permutation_findings,
    renaming_findings,
    row_shift_findings,
)
from moeinspect.analysis.compare.uncaptured import num_uncaptured, uncaptured_notes
from moeinspect.analysis.diagnose import diagnose_diff
from moeinspect.analysis.diagnose.evidence import less_evidence
from moeinspect.analysis.findings import Finding, Report, Verdict
from moeinspect.analysis.rules import check_trace
from moeinspect.analysis.summary import summarize
from moeinspect.trace.schema import Trace

_SEVERITY_RANK = {"error": 0, "warning": 1, "note": 2}


def diff_report(
    a: Trace, b: Trace, b2: Trace | None = None, *, strict: bool = False, max_mismatch: float = 0.0
) -> Report:
    """Compares trace `a` with its baseline `b` and checks both by the one-trace rules.

    `b2`, a second run of the configuration of `b`, tells the noise floor: what does not exceed it is no
    finding.

    `max_mismatch` is a share of cells from 0 to 1: mismatches are tolerated (verdict `numerics`) if neither
    the share over all cells nor that of any single layer is above it, for each kind of mismatch.

    Raises:
        InputError: there is nothing to compare, or `b2` cannot tell the noise of `b`.
    """
    comparison = compare(a, b, b2)
    regions = region_rows(comparison.alignment)
    layers = with_floor(
        layer_stats(comparison.alignment, comparison.cells, comparison.ties, regions), comparison.floor
    )
    tolerated = max_mismatch > 0 and _is_within(comparison.cells, max_mismatch)
    checks = [check_trace(trace, number) for number, trace in enumerate((a, b))]
    notes = [
        Finding("trace-note", "note", text, 0, input=number)
        for number, trace in enumerate((a, b))
        for text in trace.notes
    ]
    findings = _in_order(
        [*(f for check in checks for f in check.findings), *notes, *_findings(comparison, tolerated)], (a, b)
    )
    verdict = _verdict(findings, comparison)
    causes = diagnose_diff(comparison, layers, regions, findings, verdict)
    blamed = {finding.input or 0 for finding in findings if finding.severity != "note"}
    weakened = less_evidence([(a, b)[number] for number in sorted(blamed)], causes.diagnoses)
    return Report(
        command="diff",
        inputs=(summarize(a), summarize(b)),
        verdict=verdict,
        counts=_counts(comparison, regions, [check.counts for check in checks]) | causes.counts,
        findings=findings + weakened,
        layers=layers,
        diagnoses=causes.diagnoses,
        strict=strict or (comparison.tolerance.exact and not tolerated),
    )


def _findings(comparison: Comparison, tolerated: bool) -> Iterator[Finding]:
    alignment, cells = comparison.alignment, comparison.cells
    yield from model_findings(alignment)
    yield from machine_note(alignment, comparison.tolerance)
    yield from uncaptured_notes(alignment, cells)
    yield from one_sided_findings(alignment, comparison.token_ties)
    yield from floor_findings(comparison)
    yield from row_shift_findings(alignment, cells, find_row_shifts(alignment, cells, comparison.moved))
    yield from layer_shift_findings(alignment, cells, find_layer_shifts(alignment, cells))
    permutations = find_permutations(alignment, cells)
    yield from permutation_findings(alignment, cells, permutations)
    yield from renaming_findings(
        alignment, cells, *find_renamings(alignment, cells, [p.place for p in permutations])
    )
    first = first_divergence(alignment, cells)
    yield from MismatchFindings(comparison, first, tolerated=tolerated)
    if cells.any_mismatch.any() and not comparison.ties.has_margins and comparison.floor is None:
        yield Finding(
            rule="no-margins",
            severity="note",
            message=(
                "neither trace holds margins, so there is no near-tie verdict: no mismatch can be put down "
                "to rounding (record one of them with --margins, or give a second run of the baseline with "
                "--noise-floor)"
            ),
            count=0,
        )


def _is_within(cells: CellResults, max_mismatch: float) -> bool:
    compared = cells.compared.sum(axis=0)
    for mismatch in (cells.set_mismatch, cells.order_mismatch, cells.weight_mismatch):
        if mismatch is not None:
            by_layer = mismatch.sum(axis=0)
            if by_layer.sum() > max_mismatch * compared.sum() or (by_layer > max_mismatch * compared).any():
                return False
    return True


def _verdict(findings: tuple[Finding, ...], comparison: Comparison) -> Verdict:
    if any(finding.severity != "note" for finding in findings):
        return "findings"
    return "numerics" if comparison.cells.any_mismatch.any() or comparison.token_ties else "clean"


def _in_order(findings: list[Finding], traces: tuple[Trace, Trace]) -> tuple[Finding, ...]:
    """By severity, then by request in file order, then by rows."""
    place: dict[str, int] = {}
    for trace in traces:
        for name in trace.requests.id:
            place.setdefault(str(name), len(place))

    def key(finding: Finding) -> tuple[int, int, tuple[int, int]]:
        request = -1 if finding.request is None else place.get(finding.request, len(place))
        return _SEVERITY_RANK[finding.severity], request, finding.rows or (0, 0)

    return tuple(sorted(findings, key=key))


def _counts(
    comparison: Comparison, regions: Mapping[str, NDArray[np.bool_]], checks: list[Mapping[str, int]]
) -> dict[str, int]:
    alignment, cells, ties = comparison.alignment, comparison.cells, comparison.ties
    pair_rows = alignment.pair_rows
    counts = {
        name: sum(check.get(name, 0) for check in checks)
        for name in dict.fromkeys(name for check in checks for name in check)
    }
    counts["cells_flagged"] = counts.get("cells_flagged", 0) + int(cells.any_mismatch.sum())
    counts |= {
        "requests_compared": int(sum(len(rows.comparable) > 0 for rows in pair_rows)),
        "requests_only_in_a": len(alignment.pairing.only_a),
        "requests_only_in_b": len(alignment.pairing.only_b),
        "rows_compared": int(cells.compared.any(axis=1).sum()),
        "rows_only_in_a": sum(len(rows.only_a) for rows in pair_rows),
        "rows_only_in_b": sum(len(rows.only_b) for rows in pair_rows),
        "rows_not_comparable": sum(rows.not_comparable for rows in pair_rows),
        "rows_not_real": sum(rows.not_real for rows in pair_rows),
        "cells_compared": int(cells.compared.sum()),
        "cells_exempt": num_uncaptured(alignment, cells),
        "set_mismatch_cells": int(cells.set_mismatch.sum()),
        "disjoint_cells": int((cells.set_mismatch & (cells.overlap == 0)).sum()),
        "near_ties": int(ties.near_tie.sum()),
        "after_flip_cells": int(ties.cascade.sum() + ties.weight_cascade.sum()),
    }
    if comparison.floor is not None:
        within = comparison.floor.within["set"] & ~ties.explained_sets
        counts["within_floor_cells"] = int(within.sum())
    for name, mismatch in (("order", cells.order_mismatch), ("weight", cells.weight_mismatch)):
        if mismatch is not None:
            counts[f"{name}_mismatch_cells"] = int(mismatch.sum())
    for name, rows in regions.items():
        if rows.any():
            counts[f"{name}_cells"] = int(cells.compared[rows].sum())
            counts[f"{name}_set_mismatch_cells"] = int(cells.set_mismatch[rows].sum())
    return counts
