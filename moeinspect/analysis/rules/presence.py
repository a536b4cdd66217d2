"""`missing-request`, `missing-rows`, `surplus-rows`: is there a row for each token that was fed?"""

from __future__ import annotations

import numpy as np

from moeinspect.analysis.findings import Finding
from moeinspect.analysis.requests import is_imported, request_evidence, sampled_nothing
from moeinspect.analysis.rules.grouping import rows_text
from moeinspect.analysis.rules.view import TraceView
from moeinspect.trace.schema import FinishReason, Validity


def check_presence(view: TraceView) -> list[Finding]:
    """Compares `num_rows` of each request with the tokens that it fed; `count` is in rows.

    A request whose rows are all declared missing has no payload, like one without rows. A request that was
    aborted or did not ask for its rows may lack them: a note. So is the last prompt row of an imported
    request that sampled nothing: docs/rules.md says why.
    """
    columns = view.trace.requests
    expected, present = view.expected_rows, columns.num_rows.astype(np.int64)
    absent = (_rows_not_missing(view) == 0) & (expected > 0)
    findings = []
    for request in np.flatnonzero(absent | (present != expected)).tolist():
        have, want = int(present[request]), int(expected[request])
        if absent[request]:
            text = "no routed experts at all" if not have else "every row is declared missing"
            findings.append(_finding(view, request, "missing-request", (0, want), text))
        elif have < want:
            text = f"missing, {have} rows stand for {want} fed tokens"
            findings.append(_finding(view, request, "missing-rows", (have, want), text))
        else:
            text = f"surplus, {have} rows stand for {want} fed tokens"
            findings.append(_finding(view, request, "surplus-rows", (want, have), text))
    return findings


def _excuse(view: TraceView, request: int, rule: str, rows: tuple[int, int]) -> str:
    """Why rows may be missing for a reason, or nothing."""
    columns = view.trace.requests
    if rule == "surplus-rows":
        return ""
    if columns.finish_reason[request] == FinishReason.ABORT:
        return "aborted"
    if rule == "missing-request" and view.not_opted_in[request]:
        return "did not ask for routed experts"
    if rows[1] - rows[0] == 1 and sampled_nothing(columns)[request] and is_imported(view.trace):
        return "no token was sampled, and the engine returns one row less than tokens: prefill-only-short"
    return ""


def _rows_not_missing(view: TraceView) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Number of rows [N] of each request that are not declared missing."""
    request = view.places.request
    present = (request >= 0) & (view.trace.rows.validity != Validity.MISSING)
    return np.bincount(request[present], minlength=len(view.trace.requests)).astype(np.int64)


def _finding(view: TraceView, request: int, rule: str, rows: tuple[int, int], text: str) -> Finding:
    columns = view.trace.requests
    excuse = _excuse(view, request, rule, rows)
    return Finding(
        rule=rule,
        severity="note" if excuse else "error",
        message=f"{rows_text(rows)}: {text}" + (f" ({excuse})" if excuse else ""),
        count=rows[1] - rows[0],
        input=view.input,
        request=view.request_id(request),
        rows=rows,
        region=view.region(request, *rows),
        evidence={
            "num_rows": int(columns.num_rows[request]),
            "tokens": int(columns.prompt_len[request]) + int(columns.output_len[request]),
            "start_pos": int(columns.start_pos[request]),
            **request_evidence(view.trace, request),
        },
    )
