"""`filler-rows`: rows that follow a pattern which trainers and engines write where nothing was captured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.findings import Finding
from moeinspect.analysis.rules.chance import LOG10_LIMIT, log10
from moeinspect.analysis.rules.filler_nan import nan_runs
from moeinspect.analysis.rules.filler_run import FillerRun
from moeinspect.analysis.rules.filler_running import running_runs
from moeinspect.analysis.rules.grouping import CellRun, findings_of
from moeinspect.analysis.rules.numbering import cell_log10
from moeinspect.analysis.rules.repeats import RepeatModel
from moeinspect.analysis.rules.view import TraceView

PATTERNS = {
    "arange": "every cell is 0, 1, ... K-1",
    "running-arange": "the ids count up from row to row",
    "constant": "one cell repeated in every layer and row",
    "arange-from-layer": "every cell from this layer on is 0, 1, ... K-1, as NaN logits give",
}


def check_filler(view: TraceView) -> list[Finding]:
    """Runs of 4 or more rows that follow one filler pattern in all checked layers.

    `arange-from-layer` is the exception: arange(K) from some layer to the last in every row of a request,
    which is what a top-k of NaN logits gives once the hidden state is NaN.
    """
    rows = view.whole_rows()
    if not rows.any():
        return []
    model = RepeatModel(view, rows)
    runs = [*_equal_row_runs(view, model), *running_runs(view, model), *nan_runs(view, rows)]
    cells = np.zeros(view.flagged.shape, dtype=bool)
    kind = np.full(len(rows), -1, dtype=np.int64)
    for number, run in enumerate(runs):
        span = slice(run.first, run.last)
        if run.chance_log10 < LOG10_LIMIT and not (kind[span] >= 0).any():
            kind[span] = number
            cells[np.ix_(np.arange(run.first, run.last), run.places)] = True

    def describe(found: CellRun) -> tuple[str, Mapping[str, Any]]:
        run = runs[int(kind[found.first])]
        return PATTERNS[run.pattern], {"pattern": run.pattern, "chance_log10": round(run.chance_log10, 1)}

    return findings_of(view, view.claim(cells), "filler-rows", "warning", describe, kind)


def _equal_row_runs(view: TraceView, model: RepeatModel) -> list[FillerRun]:
    """Runs of equal rows whose row is arange(K) in every layer, or one cell in every layer."""
    layers = view.checked_layers
    arange = np.arange(view.top_k)
    found = []
    for run in model.long_runs.tolist():
        cells: NDArray[Any] = view.ids[int(model.first[run])][layers]
        if not (cells == cells[0]).all():
            continue
        is_arange = bool((cells[0] == arange).all())
        if not is_arange and len(layers) < 2:
            continue
        # That rows are equal at all is one part of the chance, that they bear these numbers the other.
        equal = min(log10(float(len(model.long_runs))), model.chance_log10(run))
        fitting = len(layers) if is_arange else len(layers) - 1
        chance = max(equal + fitting * cell_log10(view), model.habit_log10(run))
        name = "arange" if is_arange else "constant"
        found.append(FillerRun(int(model.first[run]), int(model.last[run]), name, layers, chance))
    return found
