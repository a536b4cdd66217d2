"""Sentences and number formats that the text formats share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from moeinspect.analysis.findings import Diagnosis, Finding, InputSummary, Report

MORE = "use --format json"


def percent(share: float | None) -> str:
    """`12.3 %`, `-` for None; never rounded to 0 or 100 unless it is."""
    if share is None:
        return "-"
    if 0 < share < 0.0005:
        return "<0.1 %"
    if 0.9995 <= share < 1:
        return ">99.9 %"
    return f"{100 * share:.1f} %"


def counted(number: int, noun: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def input_letter(report: Report, number: int | None) -> str:
    """How an input is called: A and B in a diff, its place among the files in a check, empty alone."""
    if number is None or (len(report.inputs) == 1):
        return ""
    return "AB"[number] if report.command == "diff" else f"#{number + 1}"


def input_line(one: InputSummary) -> str:
    """What an input is, in one line."""
    parts = [
        one.engine,
        counted(one.requests, "request"),
        counted(one.rows, "row"),
        counted(one.layers, "MoE layer"),
        f"top-{one.top_k} of {one.num_experts}",
    ]
    return ", ".join(part for part in parts if part) + ("" if one.complete else ", incomplete")


def first_divergence(report: Report) -> str | None:
    """Where the two runs part for the first time, in execution order; None where they never do."""
    for finding in report.findings:
        first = finding.evidence.get("first_divergence")
        if first:
            step = "" if first["step"] is None else f", step {first['step']} of {first['worker']}"
            return (
                f"request {finding.request!r}, position {first['position']} (token {first['token']}), "
                f"layer {first['layer']}{step}: {finding.rule}"
            )
    return None


def share_of_cause(report: Report, one: Diagnosis) -> str:
    """`806 of 3,416 flagged cells`: what a cause accounts for where it does not for all."""
    total = _cells_to_explain(report)
    return f"{one.explains:,} of {total:,} flagged cells" if 0 < one.explains < total else ""


def unexplained_line(report: Report) -> str:
    """Says how many flagged cells no cause by name explains; empty where all are, or there is no cause."""
    left = report.counts.get("cells_unexplained", 0)
    if not left:
        return ""
    are = "is" if left == 1 else "are"
    return f"{left:,} of {_cells_to_explain(report):,} flagged cells {are} explained by none of these"


def _cells_to_explain(report: Report) -> int:
    given = sum(one.explains for one in report.diagnoses)
    return max(given, report.counts.get("cells_to_explain", 0))


def verdict_line(report: Report) -> str:
    """The last line of every text format."""
    counts = report.counts
    if "cells_compared" in counts:
        return _diff_verdict(report)
    checked = (
        f"{counted(counts.get('rows_checked', 0), 'row')}, {counted(counts.get('cells_checked', 0), 'cell')}"
    )
    flagged = counts.get("cells_flagged", 0)
    if report.verdict == "clean":
        return f"clean: {checked} checked, {flagged} flagged"
    return f"{report.verdict}: {severities(report.findings)}; {checked} checked, {flagged} flagged"


def _diff_verdict(report: Report) -> str:
    counts = report.counts
    rows, cells = counts["rows_compared"], counts["cells_compared"]
    differing = sum(counts.get(f"{kind}_mismatch_cells", 0) for kind in ("set", "order"))
    compared = f"{counted(rows, 'row')}, {counted(cells, 'cell')} compared"
    if report.verdict == "clean":
        return f"clean: {compared}, 0 differ"
    differ = f"{differing} differ ({percent(differing / cells if cells else None)})"
    weights = counts.get("weight_mismatch_cells", 0)
    if weights:
        differ += f", {weights} with other weights"
    if report.verdict == "findings":
        return f"findings: {severities(report.findings)}; {compared}, {differ}"
    explained = counts["near_ties"] + counts.get("after_flip_cells", 0)
    why = "within the tolerated share"
    if explained >= counts["set_mismatch_cells"]:
        why = "all near-ties or after one"
    elif explained + counts.get("within_floor_cells", 0) >= counts["set_mismatch_cells"]:
        why = "within the noise floor"
    strict = "; counted as a difference" if report.strict else ""
    return f"numerics: {compared}, {differ}, {why}{strict}"


def severities(findings: Iterable[Finding]) -> str:
    """`2 errors, 1 warning`; notes are not counted."""
    counts = Counter(finding.severity for finding in findings)
    named = [counted(counts[name], name) for name in ("error", "warning") if counts[name]]
    return ", ".join(named) or "nothing"
