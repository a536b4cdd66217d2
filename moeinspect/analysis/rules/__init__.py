"""The rules that look at one trace. A cell counts under the first rule that fits, in the order below."""

from __future__ import annotations

from dataclasses import dataclass

from moeinspect.analysis.findings import Finding
from moeinspect.analysis.rules.constant_column import check_constant_column
from moeinspect.analysis.rules.duplicates import check_duplicates
from moeinspect.analysis.rules.equal_layers import check_equal_layers
from moeinspect.analysis.rules.filler import check_filler
from moeinspect.analysis.rules.id_cliff import check_id_cliff
from moeinspect.analysis.rules.id_range import check_id_range
from moeinspect.analysis.rules.presence import check_presence
from moeinspect.analysis.rules.repeated import check_repeated
from moeinspect.analysis.rules.scope import check_scope
from moeinspect.analysis.rules.stale import check_stale
from moeinspect.analysis.rules.view import TraceView
from moeinspect.analysis.rules.zeros import check_zeros
from moeinspect.trace.schema import Trace

RULES = (
    check_presence,
    check_id_range,
    check_zeros,
    check_duplicates,
    check_filler,
    check_repeated,
    check_stale,
    check_constant_column,
    check_equal_layers,
    check_id_cliff,
)
"""In the order in which they may count a cell."""


@dataclass(frozen=True, slots=True)
class RuleResult:
    """What the one-trace rules found.

    `findings` in the order of the rules, notes last. `counts`: `rows_checked` are rows that stand for a fed
    token and are not declared missing or filler; `cells_checked` their cells in MoE layers, exempt ones
    among them; `cells_flagged` the cells that a rule counted, each once; `rows_missing` and `rows_surplus`
    what the rules on presence counted. `notes` are the messages of the findings that are notes.
    """

    findings: tuple[Finding, ...]
    counts: dict[str, int]
    notes: tuple[str, ...]


def check_trace(trace: Trace, input_index: int | None = None) -> RuleResult:
    """Applies every one-trace rule to `trace`; `input_index` is what the findings carry as `input`."""
    view = TraceView(trace, input_index)
    findings = [finding for rule in RULES for finding in rule(view)]
    findings += check_scope(view)
    serious = [finding for finding in findings if finding.severity != "note"]
    rows_checked = int(view.checked.sum())
    counts = {
        "rows_checked": rows_checked,
        "cells_checked": rows_checked * len(view.layers),
        "cells_flagged": int(view.flagged.sum()),
        "rows_missing": sum(f.count for f in serious if f.rule in ("missing-request", "missing-rows")),
        "rows_surplus": sum(f.count for f in serious if f.rule == "surplus-rows"),
    }
    notes = tuple(finding.message for finding in findings if finding.severity == "note")
    return RuleResult(tuple(findings), counts, notes)


__all__ = ["RuleResult", "check_trace"]
