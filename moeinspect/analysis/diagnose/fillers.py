"""`filler-as-real`: rows that hold what trainers write where nothing was captured."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.diagnose.mismatch import Mismatch
from moeinspect.analysis.diagnose.nextstep import diagnosis
from moeinspect.analysis.diagnose.provenance import row_requests
from moeinspect.analysis.diagnose.sources import Sources
from moeinspect.analysis.diagnose.words import counted
from moeinspect.analysis.exempt import places_to_capture
from moeinspect.analysis.findings import Diagnosis
from moeinspect.analysis.rules.chance import LOG10_LIMIT, label_log10, log10, tail_log10
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

NUMBERINGS = ("arange", "running", "constant")
"""Kinds that show by the numbers of the experts, whatever the right rows hold."""

_MOST = 0.8
_BAD = 0.5
"""Share of a row's cells that have to be wrong: rounding turns over fewer."""


def filler_kinds(trace: Trace, rows: NDArray[np.int64]) -> dict[str, NDArray[np.bool_]]:
    """Which of these rows [n] of the file are filler, by the kinds of WORDS; a row may be of several.

    `running` is any numbering that goes through the row: each layer after the one before, as the axis or
    the model counts layers, or all layers alike. Only `copied` looks at the row before.
    """
    checked = places_to_capture(trace)
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
    bad = np.flatnonzero(mismatch.rows_wrong_in(_BAD))
    if not len(bad):
        return None
    kinds = _kinds_of_wrong_rows(mismatch, bad)
    made = np.any(list(kinds.values()), axis=0)
    if made.sum() < _MOST * len(bad):
        return None
    because = [f"{counted(int(made.sum()), 'wrong row')} hold what was never routed: {_named(kinds)}"]
    return diagnosis("filler-as-real", 0.9, because, mismatch.a)


def filler_rows(mismatch: Mismatch, sources: Sources) -> NDArray[np.bool_]:
    """Rows [R, 1] that are wrong and filler, where rounding can not have made them.

    Rounding that gets most layers of a row wrong does so whatever the row holds, and no router prefers the
    numbers that experts have: so few right rows are filler, or a numbering is too long to be one by chance.
    """
    is_bad, in_a = mismatch.rows_wrong_in(_BAD), mismatch.alignment.a_row
    bad = np.flatnonzero(is_bad)
    right = np.flatnonzero(~is_bad & mismatch.rows_in_question & ~mismatch.unrouted)
    if not len(bad):
        return is_bad[:, None]
    kinds = _kinds_of_wrong_rows(mismatch, bad)
    together = (int(mismatch.cells.sum()) - len(bad)) * log10(len(bad) / len(is_bad))
    exact = mismatch.comparison.tolerance.exact
    if np.any(list(kinds.values()), axis=0).sum() >= _MOST * len(bad) and (exact or together < LOG10_LIMIT):
        return mismatch.rows_in_question[:, None]
    usual = filler_kinds(mismatch.a, in_a[right])
    for each, rows in ((kinds, in_a[bad]), (usual, in_a[right])):
        each["copied"] &= _other_token_before(mismatch.a, rows)
    marked = np.zeros(len(mismatch.alignment), dtype=bool)
    for kind, held in kinds.items():
        chance = tail_log10(int(held.sum()), len(bad), (usual[kind].sum() + 1) / (len(right) + 2))
        if kind in NUMBERINGS and held.any():
            chance = min(chance, log10(float(len(bad))) + _numbering_log10(mismatch.a))
        if chance < LOG10_LIMIT:
            marked[bad[held]] = True
    return marked[:, None]


def _numbering_log10(trace: Trace) -> float:
    """Chance that one row of a healthy trace is a numbering: each layer's experts bear the wanted numbers."""
    E, K = trace.model.num_experts, trace.rows.expert_ids.shape[2]
    layers = len(places_to_capture(trace))
    return (layers - 1) * label_log10(E, K) + log10(3.0)  # a running one may begin anywhere, in three ways


def _other_token_before(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether these rows [n] of the file stand under another token than the rows before them."""
    requests, request = trace.requests, row_requests(trace)[rows]
    at = requests.token_start[request] + requests.start_pos[request] + rows - requests.row_start[request]
    at = np.minimum(at, len(trace.tokens) - 1)
    return np.asarray(trace.tokens[at] != trace.tokens[np.maximum(0, at - 1)])


def _kinds_of_wrong_rows(mismatch: Mismatch, bad: NDArray[np.int64]) -> dict[str, NDArray[np.bool_]]:
    rows = mismatch.alignment.a_row[bad]
    kinds = filler_kinds(mismatch.a, rows)
    kinds["copied"] = _copies_of_right_rows(rows, kinds["copied"])
    return kinds


def filler_reason(trace: Trace, rows: NDArray[np.bool_]) -> str:
    """What these rows [R] hold, if nearly all of them are filler; nothing otherwise."""
    numbers = np.flatnonzero(rows).astype(np.int64)
    kinds = filler_kinds(trace, numbers)
    made = np.any(list(kinds.values()), axis=0)
    return _named(kinds) if len(numbers) and made.mean() >= _MOST else ""


def is_numbering(trace: Trace, rows: NDArray[np.bool_]) -> bool:
    """Whether these rows [R] hold zeros or a numbering: no other row can be the reason that they do."""
    kinds = filler_kinds(trace, np.flatnonzero(rows).astype(np.int64))
    made = np.any([kinds[kind] for kind in ("zeros", *NUMBERINGS)], axis=0)
    return bool(len(made) and made.mean() >= _MOST)


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
