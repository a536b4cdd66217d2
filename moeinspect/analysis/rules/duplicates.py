"""`duplicate-experts`: an id that stands twice in one cell; top-k chooses without replacement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moeinspect.analysis.findings import Finding
from moeinspect.analysis.rules.cell_facts import multiplicity
from moeinspect.analysis.rules.grouping import CellRun, findings_of
from moeinspect.analysis.rules.view import TraceView


def check_duplicates(view: TraceView) -> list[Finding]:
    """Cells with a repeated id that no earlier rule has counted; not in exempt layers or top-1 models."""
    if view.top_k < 2:
        return []
    new = view.claim(view.facts.duplicate & view.checked[:, None] & ~view.exempt[None, :])

    def describe(run: CellRun) -> tuple[str, Mapping[str, Any]]:
        here = view.ids[run.first : run.last][new[run.first : run.last]]
        times, example = multiplicity(here[:4096]), here[0].tolist()
        return f"an expert stands {times} times, as in {example}", {"multiplicity": times, "example": example}

    return findings_of(view, new, "duplicate-experts", "error", describe)
