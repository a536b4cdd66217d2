"""Short ways to run the rules in tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis.tracefactory import make_trace

from moeinspect.analysis.findings import Finding
from moeinspect.analysis.rules import check_trace
from moeinspect.trace.schema import ModelFacts, RequestRecord, Trace


def findings(trace: Trace, rule: str | None = None) -> list[Finding]:
    """Errors and warnings of a trace, of one rule if named."""
    return [
        f for f in check_trace(trace, 0).findings if f.severity != "note" and (rule is None or f.rule == rule)
    ]


def places(trace: Trace, rule: str) -> list[tuple[Any, ...]]:
    """(request, rows, layers) of the findings of one rule."""
    return [(f.request, f.rows, f.layers) for f in findings(trace, rule)]


def rules_of(records: Sequence[RequestRecord], facts: ModelFacts, **run: Any) -> set[str]:
    """Names of the rules that fire."""
    return {f.rule for f in findings(make_trace(records, facts, run=run))}


def notes(trace: Trace) -> list[Finding]:
    """Findings that are notes."""
    return [f for f in check_trace(trace, 0).findings if f.severity == "note"]
