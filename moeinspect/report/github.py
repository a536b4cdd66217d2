"""The report as workflow commands of GitHub Actions, which shows them beside the run."""

from __future__ import annotations

from moeinspect.analysis.findings import Diagnosis, Finding, Report
from moeinspect.printable import printable
from moeinspect.report.words import MORE, input_letter, share_of_cause, unexplained_line, verdict_line

MAX_FINDINGS = 100
"""Commands that are written; GitHub itself shows ten of each severity and step."""

_COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}


def render_github(report: Report) -> str:
    """One `::error`, `::warning` or `::notice` a line, then the verdict as an ordinary line."""
    lines = [_finding(report, finding) for finding in report.findings[:MAX_FINDINGS]]
    if len(report.findings) > MAX_FINDINGS:
        more = f"... and {len(report.findings) - MAX_FINDINGS} more findings ({MORE})"
        lines.append(command("notice", "moeinspect", more))
    lines += [_diagnosis(one, share_of_cause(report, one)) for one in report.diagnoses]
    if left := unexplained_line(report):
        lines.append(command("notice", "moeinspect diagnosis", left))
    # A verdict cannot start with ::, so nothing in it is taken for a command.
    return "\n".join([*lines, printable(verdict_line(report))]) + "\n"


def _finding(report: Report, finding: Finding) -> str:
    letter = input_letter(report, finding.input)
    path = "" if finding.input is None else report.inputs[finding.input].path
    source = ": ".join(part for part in (letter, path) if part)
    request = "" if finding.request is None else f"request {finding.request!r}, "
    message = f"{request}{finding.message}" + (f" [{source}]" if source else "")
    return command(_COMMANDS[finding.severity], f"moeinspect {finding.rule}", message)


def _diagnosis(one: Diagnosis, share: str) -> str:
    reasons = [*one.because, f"explains {share}"] if share else one.because
    listed = "\n".join(f"- {reason}" for reason in reasons)
    seen = f"\nSeen in: {one.reference}" if one.reference else ""
    title = f"moeinspect diagnosis: {one.cause} ({one.confidence:.0%})"
    return command("notice", title, f"{listed}{seen}\nNext: {one.next_step}")


def command(name: str, title: str, message: str) -> str:
    """One workflow command."""
    return f"::{name} title={_property(title)}::{_data(message)}"


def _data(text: str) -> str:
    """Escaped as a command's message; line breaks survive, other control characters are spelled out."""
    lines = (printable(line) for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"))
    return "\n".join(lines).replace("%", "%25").replace("\n", "%0A")


def _property(text: str) -> str:
    """Escaped as a command's property."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")
