"""The report as plain lines for pipes and logs: one record a line, nothing cut, the verdict last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from moeinspect.analysis.findings import Diagnosis, Finding, LayerStats, Report
from moeinspect.printable import printable
from moeinspect.report.guide import explain_command
from moeinspect.report.words import (
    MORE,
    first_divergence,
    input_letter,
    input_line,
    percent,
    share_of_cause,
    unexplained_line,
    verdict_line,
)

MAX_PER_RULE = 200
"""Findings of one rule that are written out."""

_COLORS = {"clean": "32", "numerics": "33", "findings": "31", "error": "31", "warning": "33", "note": "36"}


def render_plain(report: Report, *, color: bool) -> str:
    """Lines that start with what they are: input, layer, error, warning, note, diagnosis, verdict."""
    lines = [
        *_inputs(report),
        *map(_layer, report.layers),
        *_first_divergence(report),
        *_findings(report, color),
        *_diagnoses(report),
        _painted(printable(verdict_line(report)), report.verdict, color),
    ]
    return "\n".join(lines) + "\n"


def _inputs(report: Report) -> Iterator[str]:
    for number, one in enumerate(report.inputs):
        letter = input_letter(report, number)
        yield printable(f"input {letter + ' ' if letter else ''}{one.path}: {input_line(one)}")


def _layer(one: LayerStats) -> str:
    parts = [f"{one.compared} cells", f"set mismatch {percent(one.set_mismatch)}"]
    if one.order_mismatch is not None:
        parts.append(f"order mismatch {percent(one.order_mismatch)}")
    if one.extra.get("weight_mismatch") is not None:
        parts.append(f"weight mismatch {percent(one.extra['weight_mismatch'])}")
    if one.overlap_mean is not None:
        parts.append(f"overlap {one.overlap_mean:.3f}")
    if one.extra.get("chance_overlap") is not None:
        parts.append(f"chance {one.extra['chance_overlap']:.3f}")
    return f"layer {one.layer}: {', '.join(parts)}"


def _first_divergence(report: Report) -> Iterator[str]:
    where = first_divergence(report)
    if where:
        yield printable(f"first-divergence {where}")


def _findings(report: Report, color: bool) -> Iterator[str]:
    written: Counter[str] = Counter()
    for finding in report.findings:
        written[finding.rule] += 1
        if written[finding.rule] <= MAX_PER_RULE:
            yield _finding(report, finding, color)
    for rule, number in written.items():
        if number > MAX_PER_RULE:
            yield f"... and {number - MAX_PER_RULE} more {rule} ({MORE})"


def _finding(report: Report, finding: Finding, color: bool) -> str:
    letter = input_letter(report, finding.input)
    where = f" in {letter}" if letter else ""
    request = "" if finding.request is None else f" request {finding.request!r}"
    severity = _painted(finding.severity, finding.severity, color)
    return severity + printable(f" {finding.rule}{where}{request}: {finding.message}")


def _diagnoses(report: Report) -> Iterator[str]:
    for one in report.diagnoses:
        yield from _diagnosis(one, share_of_cause(report, one))
    if left := unexplained_line(report):
        yield f"diagnosis: {left}"


def _diagnosis(one: Diagnosis, share: str) -> Iterator[str]:
    yield printable(f"diagnosis {one.cause}: confidence {one.confidence:.2f}")
    if share:
        yield printable(f"diagnosis {one.cause}: explains {share}")
    for reason in one.because:
        yield printable(f"diagnosis {one.cause}: because {reason}")
    if one.reference:
        yield printable(f"diagnosis {one.cause}: seen in {one.reference}")
    yield printable(f"diagnosis {one.cause}: read {explain_command(one.cause)}")
    yield printable(f"diagnosis {one.cause}: next {one.next_step}")


def _painted(text: str, name: str, color: bool) -> str:
    return f"\x1b[{_COLORS[name]}m{text}\x1b[0m" if color else text
