"""`filler-as-real`: rows that hold what trainers write where nothing was captured."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.diagnose.mismatch import Mismatch
from moeinspect.analysis.diagnose.nextstep import diagnosis
from moeinspect.analysis.diagnose.provenance import row_requests
from moeinspect.analysis.diagnose.sources import Sources
from moeinspect.analysis.diagnose.words import counted
from moeinspect.analysis.findings import Diagnosis
from moeinspect.trace.schema import Trace, Validity

WORDS = {
    "zeros": "0 in all places",
    "absent": '"no id" in all places',
    "arange": "0, 1, ... K-1 in every cell",
    "running": "ids that count up",
    "constant": "one cell in every layer",
    "copied": "a copy of the row before",
}
"""How a sentence names each kind of filler."""

_MOST = 0.8
_BAD = 0.5
"""Share of a row's cells that have to be wrong: rounding turns over fewer."""


def filler_kinds(trace: Trace, rows: NDArray[np.int64]) -> dict[str, NDArray[np.bool_]]:
    """Which of these rows [n] of the file are filler, by the kinds of WORDS; a row may be of several.

    `running` is any numbering that goes through the row: each layer after the one before, as the axis or
    the model counts layers, or all layers alike. Only `copied` looks at the row before.
    """
    checked = _checked_places(trace)
    ids = trace.rows.expert_ids[rows][:, checked].astype(np.int64)
    E, K = trace.model.num_experts, ids.shape[2]
    slots, layers = np.arange(K), trace.axis_layers()[checked]
    first = ids[:, :1, :1]

    def follows(layer_steps: NDArray[np.int64]) -> NDArray[np.bool_]:
        pattern = layer_steps[:, None] * K + slots
        return np.asarray(((ids - first - (pattern - pattern[0, 0])) % E == 0).all(axis=(1, 2)))

    is_id = (ids < E).all(axis=(1, 2))
    claimed = np.isin(trace.rows.validity[rows], (Validity.INVALID, Validity.MISSING))
    request = row_requests(trace)
    before = np.maximum(0, rows - 1)
    same_request = (rows > 0) & (request[rows] == request[before])
    previous = trace.rows.expert_ids[before][:, checked]
    return {
        "zeros": ~ids.any(axis=(1, 2)) & (K > 1),
        "absent": claimed & (ids == trace.model.sentinel).all(axis=(1, 2)),
        "arange": is_id & (ids == slots % E).all(axis=(1, 2)) & (K > 1),
        "running": is_id & (follows(checked) | follows(layers) | follows(np.zeros_like(checked))) & (K > 1),
        "constant": is_id & (ids == ids[:, :1]).all(axis=(1, 2)) & (len(checked) > 1),
        "copied": is_id & same_request & (ids == previous).all(axis=(1, 2)),
    }


def diagnose_filler(mismatch: Mismatch, sources: Sources) -> Diagnosis | None:
    """Wrong rows that are filler, or copies of a right row before them."""
    alignment = mismatch.alignment
    compared = np.maximum(1, mismatch.comparison.cells.compared.sum(axis=1))
    bad = np.flatnonzero(mismatch.cells.sum(axis=1) >= _BAD * compared)
    if not len(bad):
        return None
    kinds = filler_kinds(mismatch.a, alignment.a_row[bad])
    kinds["copied"] = _copies_of_right_rows(alignment.a_row[bad], kinds["copied"])
    made = np.any(list(kinds.values()), axis=0)
    if made.sum() < _MOST * len(bad):
        return None
    because = [f"{counted(int(made.sum()), 'wrong row')} hold what was never routed: {_named(kinds)}"]
    return diagnosis("filler-as-real", 0.9, because, mismatch.a)


def filler_reason(trace: Trace, rows: NDArray[np.bool_]) -> str:
    """What these rows [R] hold, if nearly all of them are filler; nothing otherwise."""
    numbers = np.flatnonzero(rows).astype(np.int64)
    kinds = filler_kinds(trace, numbers)
    made = np.any(list(kinds.values()), axis=0)
    return _named(kinds) if len(numbers) and made.mean() >= _MOST else ""


def _named(kinds: dict[str, NDArray[np.bool_]]) -> str:
    rest = ~np.zeros_like(kinds["zeros"])
    named = []
    for kind, marked in kinds.items():
        if (marked & rest).any():
            named.append(f"{WORDS[kind]} ({int((marked & rest).sum()):,})")
        rest &= ~marked
    return ", ".join(named)


def _copies_of_right_rows(rows: NDArray[np.int64], copied: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Copies whose run begins with a row that is not wrong: padding by the last row keeps that one right."""
    goes_on = np.zeros(len(rows), dtype=bool)
    goes_on[1:] = (rows[1:] == rows[:-1] + 1) & copied[:-1]
    heads = np.maximum.accumulate(np.where(goes_on, -1, np.arange(len(rows))))
    follows_wrong = np.isin(rows - 1, rows)[heads]
    return np.asarray(copied & ~follows_wrong)


def _checked_places(trace: Trace) -> NDArray[np.int64]:
    """Places on axis 1 of the ids of the MoE layers that have to be captured."""
    layers, model = trace.axis_layers(), trace.model
    checked = np.isin(layers, model.moe_layers) & ~np.isin(layers, model.capture_exempt_layers)
    return np.flatnonzero(checked).astype(np.int64)
