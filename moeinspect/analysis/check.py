"""The report of `check-duplicates`: every one-trace rule on each trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from moeinspect.analysis.diagnose import Causes, diagnose_check
from moeinspect.analysis.diagnose.evidence import less_evidence
from moeinspect.analysis.findings import Finding, Report
from moeinspect.analysis.rules import check_trace
from moeinspect.analysis.summary import summarize
from moeinspect.trace.schema import Trace

_SEVERITY_RANK = {"error": 0, "warning": 1, "note": 2}


def check_report(traces: Sequence[Trace]) -> Report:
    """Checks each trace by itself; a finding's `input` is the place of its trace in `traces`.

    Findings come trace by trace: errors first, then warnings, then notes, and in the order of the requests
    and rows within. Notes do not change the verdict; one that is about the
    diagnoses stands last. Counts are sums over the traces.
    """
    findings: list[Finding] = []
    counts: Counter[str] = Counter()
    for number, trace in enumerate(traces):
        result = check_trace(trace, number)
        counts.update(result.counts)
        findings += _in_order([*result.findings, *_reader_notes(trace, number)], trace)
    blamed = {finding.input or 0 for finding in findings if finding.severity != "note"}
    causes = diagnose_check(traces, findings) if blamed else Causes()
    findings += less_evidence([traces[number] for number in sorted(blamed)], causes.diagnoses)
    return Report(
        command="check-duplicates",
        inputs=tuple(summarize(trace) for trace in traces),
        verdict="findings" if blamed else "clean",
        counts=dict(counts) | causes.counts,
        findings=tuple(findings),
        diagnoses=causes.diagnoses,
    )


def _reader_notes(trace: Trace, number: int) -> list[Finding]:
    """What the reader noticed, and that there is nothing to check in a trace without requests."""
    notes = [("trace-note", text) for text in trace.notes]
    if not len(trace.requests):
        notes.append(("no-requests", "no request had ended, so there is nothing to check"))
    return [Finding(rule=rule, severity="note", message=text, count=0, input=number) for rule, text in notes]


def _in_order(findings: list[Finding], trace: Trace) -> list[Finding]:
    place: dict[str, int] = {}
    for name in trace.requests.id.tolist():
        place.setdefault(name, len(place))

    def key(finding: Finding) -> tuple[int, int, tuple[int, int]]:
        request = -1 if finding.request is None else place[finding.request]
        return _SEVERITY_RANK[finding.severity], request, finding.rows or (0, 0)

    return sorted(findings, key=key)
