"""Rows whose ids count up: an array that was filled with 0, 1, 2, ... modulo the number of experts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.rules.chance import log10
from moeinspect.analysis.rules.filler_run import FillerRun
from moeinspect.analysis.rules.numbering import numbers_log10
from moeinspect.analysis.rules.repeats import MIN_ROWS, RepeatModel
from moeinspect.analysis.rules.runs import true_runs
from moeinspect.analysis.rules.view import TraceView

LARGEST_LOOK = 4096
"""Rows of a run that are looked at to see which experts it holds."""


def running_runs(view: TraceView, model: RepeatModel) -> list[FillerRun]:
    """Runs of 4 or more rows in which the ids of a cell count up and go on in the next row.

    Either all layers are alike and each row goes on after the one before, or a whole array was numbered:
    then each layer goes on after the one before, and layers that the trace does not hold may lie between.
    """
    E, K, layers = view.num_experts, view.top_k, view.checked_layers
    width, depth = view.trace.rows.expert_ids.shape[1], view.trace.model.num_hidden_layers
    variants = {
        (K % E, tuple([0] * len(layers))),
        (width * K % E, tuple((view.axis_position[layers] * K % E).tolist())),
        (depth * K % E, tuple((view.layers[layers] * K % E).tolist())),
    }
    index = np.flatnonzero(model.rows).astype(np.int64)
    for layer in (layers[0], layers[-1]):  # two cells rule out nearly every row
        step = (view.ids[index, layer].astype(np.int64) - view.ids[index, layer, :1]) % E
        index = index[(step == np.arange(K) % E).all(axis=1)]
    places = log10(float(model.rows.sum() * E * len(variants)))
    found: list[FillerRun] = []
    for row_step, layer_steps in sorted(variants):
        for first, last in _runs_of(view, index, row_step, np.asarray(layer_steps, dtype=np.int64)):
            chance = places + _numbers_log10(view, first, last) + _returns_log10(view, model, first, last)
            found.append(FillerRun(first, last, "running-arange", layers, chance))
    return found


def _runs_of(
    view: TraceView, index: NDArray[np.int64], row_step: int, layer_steps: NDArray[np.int64]
) -> list[tuple[int, int]]:
    """Runs of those rows at `index` whose ids count up by these steps, as rows [first, last) of the file."""
    E, layers = view.num_experts, view.checked_layers
    fits = np.zeros(len(view.ids), dtype=bool)
    start = np.zeros(len(view.ids), dtype=np.int64)
    wanted = (layer_steps[:, None] + np.arange(view.top_k)[None, :]) % E
    for part in np.array_split(index, max(1, len(index) * wanted.size >> 22)):
        ids = view.ids[part][:, layers].astype(np.int64)
        start[part] = (ids[:, 0, 0] - wanted[0, 0]) % E
        fits[part] = ((ids - start[part][:, None, None]) % E == wanted).all(axis=(1, 2))
    joined = view.joined.copy()
    joined[1:] &= (start[1:] - start[:-1]) % E == row_step
    firsts, lasts = true_runs(fits, joined)
    long = lasts - firsts >= MIN_ROWS
    return list(zip(firsts[long].tolist(), lasts[long].tolist(), strict=True))


def _numbers_log10(view: TraceView, first: int, last: int) -> float:
    """Chance that the numbers of all experts seen in a run follow the pattern, given one common start."""
    last = min(last, first + LARGEST_LOOK)
    layers = view.checked_layers.tolist()
    return sum(numbers_log10(view, len(np.unique(view.ids[first:last, layer]))) for layer in layers)


def _returns_log10(view: TraceView, model: RepeatModel, first: int, last: int) -> float:
    """Chance that rows come back under other tokens, as they do once the numbers have gone round."""
    content = view.content[first:last]
    both = np.stack([content, view.places.token[first:last].astype(np.uint64)], axis=1)
    returns = len(np.unique(both, axis=0)) - len(np.unique(content))
    return returns * log10(model.return_chance(first, last))
