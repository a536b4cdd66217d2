"""`missing-request`, `missing-rows`, `surplus-rows`: is there a row for each token that was fed?"""

from __future__ import annotations

import numpy as np

from moeinspect.analysis.findings import Finding, Severity
from moeinspect.analysis.rules.grouping import rows_text, sample_evidence
from moeinspect.analysis.rules.view import TraceView, allowed_rows
from moeinspect.trace.schema import FinishReason, Validity


def check_presence(view: TraceView) -> list[Finding]:
    """Compares `num_rows` of each request with tokens - 1 - start_pos; `count` is in rows.

    A request whose rows are all declared missing has no payload, like one without rows. An aborted request
    may lack rows: a note. One that sampled nothing may have a row for its last prompt token or not (some
    engines leave it out): the second is a note.
    """
    requests = view.trace.requests
    expected, allowed = view.expected_rows, allowed_rows(requests)
    present = requests.num_rows.astype(np.int64)
    real = _rows_not_missing(view)
    absent = (real == 0) & (expected > 0)
    odd = absent | (present < allowed) | (present > allowed)
    findings = []
    for request in np.flatnonzero(odd).tolist():
        have, want = int(present[request]), int(expected[request])
        most = int(allowed[request])
        severity: Severity = "note" if requests.finish_reason[request] == FinishReason.ABORT else "error"
        if absent[request]:
            text = "no routed experts at all" if not have else "every row is declared missing"
            findings.append(_finding(view, request, "missing-request", severity, (0, want), text))
        elif have < want:
            text = f"missing, {have} rows stand for {want} fed tokens"
            findings.append(_finding(view, request, "missing-rows", severity, (have, want), text))
        elif have < most and severity == "error":
            text = "missing, no token was sampled, so the last prompt token was fed but has no row"
            findings.append(_finding(view, request, "missing-rows", "note", (have, most), text))
        elif have > most:
            text = f"surplus, {have} rows stand for {most} fed tokens"
            findings.append(_finding(view, request, "surplus-rows", "error", (most, have), text))
    return findings


def _rows_not_missing(view: TraceView) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Number of rows [N] of each request that are not declared missing."""
    request = view.places.request
    present = (request >= 0) & (view.trace.rows.validity != Validity.MISSING)
    return np.bincount(request[present], minlength=len(view.trace.requests)).astype(np.int64)


def _finding(
    view: TraceView, request: int, rule: str, severity: Severity, rows: tuple[int, int], text: str
) -> Finding:
    columns = view.trace.requests
    aborted = columns.finish_reason[request] == FinishReason.ABORT
    return Finding(
        rule=rule,
        severity=severity,
        message=f"{rows_text(rows)}: {text}" + (" (aborted)" if aborted else ""),
        count=rows[1] - rows[0],
        input=view.input,
        request=view.request_id(request),
        rows=rows,
        region=view.region(request, *rows),
        evidence={
            "num_rows": int(columns.num_rows[request]),
            "tokens": int(columns.prompt_len[request]) + int(columns.output_len[request]),
            "start_pos": int(columns.start_pos[request]),
            **sample_evidence(view, request),
        },
    )
