"""The report for a person at a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from moeinspect.analysis.findings import Diagnosis, Finding, Report
from moeinspect.printable import printable
from moeinspect.report.drawing import drawn
from moeinspect.report.guide import explain_command
from moeinspect.report.layers import layer_view
from moeinspect.report.words import (
    MORE,
    counted,
    input_letter,
    input_line,
    share_of_cause,
    unexplained_line,
    verdict_line,
)

MAX_PER_GROUP = 6
"""Findings of one rule, input and severity that are written out."""

STYLES = {
    "clean": "bold green",
    "numerics": "bold yellow",
    "findings": "bold red",
    "error": "red",
    "warning": "yellow",
    "note": "cyan",
}


def render_text(report: Report, *, color: bool, width: int) -> str:
    """Inputs, layers, findings by rule, likely causes, and the verdict last."""
    return drawn(_sections(report), color=color, width=width)


def _sections(report: Report) -> Iterator[RenderableType]:
    yield _inputs(report)
    if report.layers:
        yield layer_view(report)
    if report.findings:
        yield _findings(report)
    if report.diagnoses:
        yield _diagnoses(report)
    yield Text(printable(verdict_line(report)), STYLES[report.verdict])


def _inputs(report: Report) -> Table:
    table = Table.grid(padding=(0, 2))
    for number, one in enumerate(report.inputs):
        letter = Text(input_letter(report, number), "bold")
        table.add_row(letter, Text(printable(one.path), overflow="fold"), Text(input_line(one), "dim"))
    return table


def _findings(report: Report) -> Group:
    def group_of(finding: Finding) -> tuple[str, str, int]:
        return finding.severity, finding.rule, -1 if finding.input is None else finding.input

    groups: dict[tuple[str, str, int], list[Finding]] = {}
    for finding in report.findings:
        groups.setdefault(group_of(finding), []).append(finding)
    parts: list[RenderableType] = [Text("Findings", "bold")]
    for findings in groups.values():
        parts.append(Padding(_group_head(report, findings), (0, 0, 0, 2)))
        parts.append(Padding(_group_body(findings), (0, 0, 0, 4)))
    return Group(*parts)


def _group_head(report: Report, findings: Sequence[Finding]) -> Text:
    first = findings[0]
    head = Text()
    head.append(first.severity, STYLES[first.severity])
    head.append(f"  {first.rule}", "bold")
    letter = input_letter(report, first.input)
    if letter:
        head.append(f"  in {letter}")
    requests = len({finding.request for finding in findings if finding.request is not None})
    if len(findings) > 1:
        total = sum(finding.count for finding in findings)
        head.append(f"  {total} in {counted(len(findings), 'run')}, {counted(requests, 'request')}", "dim")
    return head


def _group_body(findings: Sequence[Finding]) -> Table:
    """One line per finding; the id of a request is written once."""
    table = Table.grid(padding=(0, 2))
    shown = findings[:MAX_PER_GROUP]
    for request, own in groupby(shown, key=lambda finding: finding.request):
        for number, finding in enumerate(own):
            name = "" if number or request is None else printable(request)
            table.add_row(Text(name, "bold", overflow="fold"), Text(printable(finding.message)))
    if len(findings) > len(shown):
        table.add_row("", Text(f"... and {len(findings) - len(shown)} more ({MORE})", "dim"))
    return table


def _diagnoses(report: Report) -> Group:
    title = "Likely cause" if len(report.diagnoses) == 1 else "Likely causes, best first"
    parts: list[RenderableType] = [Text(title, "bold")]
    for one in report.diagnoses:
        head = Text("  ")
        head.append(printable(one.cause), "bold magenta")
        parts += [head.append(f"  {_weight_of(report, one)}", "dim"), Padding(_evidence(one), (0, 0, 0, 4))]
    if left := unexplained_line(report):
        parts.append(Padding(Text(left, "yellow"), (0, 0, 0, 2)))
    return Group(*parts)


def _weight_of(report: Report, one: Diagnosis) -> str:
    return ", ".join(filter(None, (f"{100 * one.confidence:.0f} % sure", share_of_cause(report, one))))


def _evidence(one: Diagnosis) -> Table:
    table = Table.grid(padding=(0, 1))
    for reason in one.because:
        table.add_row(Text("•", "dim", justify="right"), Text(printable(reason)))
    if one.reference:
        table.add_row(Text("seen", "dim"), Text(printable(one.reference)))
    table.add_row(Text("read", "dim"), Text(printable(explain_command(one.cause)), overflow="fold"))
    table.add_row(Text("next", "dim"), Text(printable(one.next_step), "green", overflow="fold"))
    return table
