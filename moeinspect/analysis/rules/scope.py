"""Notes on what the rules did not look at, so that silence is not taken for health."""

from __future__ import annotations

import numpy as np

from moeinspect.analysis.findings import Finding
from moeinspect.analysis.rules.grouping import layers_text
from moeinspect.analysis.rules.view import TraceView
from moeinspect.trace.schema import Validity

ZERO_RULES = "zero-layers, zero-rows and duplicate-experts"


def check_scope(view: TraceView) -> list[Finding]:
    """Notes of the rule `not-checked`: dense layers, exempt layers, top-1 models, rows declared unreal."""
    model, rows = view.trace.model, view.trace.rows
    notes: list[Finding] = []
    if view.top_k < 2 and len(rows):
        notes.append(_note(view, "top-1", 0, (), f"{ZERO_RULES} cannot judge a top-1 model"))
    dense = tuple(sorted(set(range(model.num_hidden_layers)) - set(model.moe_layers)))
    if dense and model.layer_axis == "all":
        text = f"{layers_text(dense)}: dense, not checked"
        notes.append(_note(view, "dense-layers", len(dense) * len(rows), dense, text))
    exempt = tuple(view.layers[view.exempt].tolist())
    if exempt:
        text = f"{layers_text(exempt)}: exempt from {ZERO_RULES}, and left out where whole rows are compared"
        notes.append(_note(view, "exempt-layers", len(exempt) * len(rows), exempt, text))
    for validity in (Validity.MISSING, Validity.FILLER):
        count = int(np.count_nonzero(rows.validity == validity))
        if count:
            text = f"{count} rows are declared {validity.name.lower()}, their cells were not checked"
            notes.append(_note(view, f"declared-{validity.name.lower()}", count, (), text))
    return notes


def _note(view: TraceView, reason: str, count: int, layers: tuple[int, ...], text: str) -> Finding:
    return Finding(
        rule="not-checked",
        severity="note",
        message=text,
        count=count,
        input=view.input,
        layers=layers,
        evidence={"reason": reason},
    )
