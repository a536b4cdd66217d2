"""`repeated-rows`: one row that stands in a row for several different tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from moeinspect.analysis.findings import Finding
from moeinspect.analysis.rules.chance import LOG10_LIMIT
from moeinspect.analysis.rules.grouping import CellRun, findings_of
from moeinspect.analysis.rules.repeats import RepeatModel
from moeinspect.analysis.rules.view import TraceView


def check_repeated(view: TraceView) -> list[Finding]:
    """Runs of 4 or more rows, equal in all checked layers, whose tokens differ."""
    rows = view.whole_rows()
    model = RepeatModel(view, rows)
    kind = np.full(len(rows), -1, dtype=np.int64)
    chance: dict[int, float] = {}
    for run in model.long_runs.tolist():
        if model.num_tokens[run] < 2:
            continue
        chance[run] = model.chance_log10(run)
        if chance[run] < LOG10_LIMIT:
            kind[model.first[run] : model.last[run]] = run

    def describe(found: CellRun) -> tuple[str, Mapping[str, Any]]:
        run = int(kind[found.first])
        tokens = int(model.num_tokens[run])
        evidence = {"tokens": tokens, "chance_log10": round(chance[run], 1)}
        return f"the same ids for {tokens} different tokens", evidence

    return findings_of(view, view.claim_rows(kind >= 0), "repeated-rows", "warning", describe, kind)
