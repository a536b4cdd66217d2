"""Rows of a model whose hidden state became NaN: from that layer on a top-k of NaN is 0, 1, ... K-1."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.rules.chance import log10
from moeinspect.analysis.rules.filler_run import FillerRun
from moeinspect.analysis.rules.numbering import cell_log10
from moeinspect.analysis.rules.repeats import MIN_ROWS
from moeinspect.analysis.rules.runs import spread, true_runs
from moeinspect.analysis.rules.view import TraceView


def nan_runs(view: TraceView, rows: NDArray[np.bool_]) -> list[FillerRun]:
    """Requests of 4 or more rows in which the deepest layers are arange(K) in every row."""
    layers = view.checked_layers
    if view.top_k < 2:
        return []
    arange = np.arange(view.top_k)
    fits = rows.copy()
    fits[rows] = (view.ids[rows, layers[-1]] == arange).all(axis=1)
    firsts, lasts = true_runs(fits, view.joined)
    whole = lasts - firsts == view.trace.requests.num_rows[view.places.request[firsts]]
    outside = rows.copy()
    outside[spread(firsts[whole], lasts[whole])] = False
    found = []
    for first, last in zip(firsts[whole].tolist(), lasts[whole].tolist(), strict=True):
        if last - first < MIN_ROWS:
            continue
        constant = (view.ids[first:last][:, layers] == arange).all(axis=(0, 2))
        deepest = layers[len(layers) - _num_last(constant) :]
        numbers = log10(float(len(view.trace.requests) * len(layers))) + len(deepest) * cell_log10(view)
        chance = max(numbers, _habit_log10(view, fits, outside, deepest, last - first))
        found.append(FillerRun(first, last, "arange-from-layer", deepest, chance))
    return found


def _num_last(flags: NDArray[np.bool_]) -> int:
    """How many flags at the end are set."""
    return len(flags) if flags.all() else int(np.argmin(flags[::-1]))


def _habit_log10(
    view: TraceView,
    fits: NDArray[np.bool_],
    outside: NDArray[np.bool_],
    layers: NDArray[np.int64],
    length: int,
) -> float:
    """Chance of `length` rows of arange(K) in `layers`, from its share in rows of other requests."""
    cells = view.ids[fits & outside][:, layers]
    share = (cells == np.arange(view.top_k)).all(axis=(1, 2)).sum() / max(1, int(outside.sum()))
    return min(0.0, log10(float(len(view.trace.requests))) + length * log10(float(share)))
