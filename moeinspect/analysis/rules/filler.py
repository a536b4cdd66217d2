"""`filler-rows`: rows that follow a pattern which trainers and engines write where nothing was captured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.findings import Finding
from moeinspect.analysis.rules.chance import LOG10_LIMIT, label_log10, log10, order_log10
from moeinspect.analysis.rules.grouping import CellRun, findings_of
from moeinspect.analysis.rules.repeats import MIN_ROWS, RepeatModel
from moeinspect.analysis.rules.runs import spread, true_runs
from moeinspect.analysis.rules.view import TraceView

PATTERNS = {
    "arange": "every cell is 0, 1, ... K-1",
    "running-arange": "the ids count up from row to row",
    "constant": "one cell repeated in every layer and row",
    "arange-from-layer": "every cell from this layer on is 0, 1, ... K-1, as NaN logits give",
}


@dataclass(frozen=True, slots=True)
class FillerRun:
    """Rows [first, last) of the file that follow `pattern` in the layers at `places`."""

    first: int
    last: int
    pattern: str
    places: NDArray[np.int64]
    chance_log10: float


def check_filler(view: TraceView) -> list[Finding]:
    """Runs of 4 or more rows that follow one filler pattern in all checked layers.

    `arange-from-layer` is the exception: arange(K) from some layer to the last in every row of a request,
    which is what a top-k of NaN logits gives once the hidden state is NaN.
    """
    rows = view.whole_rows()
    if not rows.any():
        return []
    runs = [*_equal_row_runs(view, rows), *_running_runs(view, rows), *_nan_runs(view, rows)]
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


def _cell_log10(view: TraceView) -> float:
    """Chance that a layer's numbering of experts turns a given cell into a given other."""
    chance = label_log10(view.num_experts, view.top_k)
    return chance if _order_known(view) else min(0.0, chance + order_log10(view.top_k, view.top_k))


def _order_known(view: TraceView) -> bool:
    return view.trace.run.slot_order == "router"


def _equal_row_runs(view: TraceView, rows: NDArray[np.bool_]) -> list[FillerRun]:
    """Runs of equal rows whose row is arange(K) in every layer, or one cell in every layer."""
    model = RepeatModel(view, rows)
    layers = view.checked_layers
    arange = np.arange(view.top_k)
    found = []
    for run in model.long_runs.tolist():
        cells = view.ids[int(model.first[run])][layers]
        if not (cells == cells[0]).all():
            continue
        is_arange = bool((cells[0] == arange).all())
        if not is_arange and len(layers) < 2:
            continue
        # That rows are equal at all is one part of the chance, that they bear these numbers the other.
        equal = min(log10(float(len(model.long_runs))), model.chance_log10(run))
        fitting = len(layers) if is_arange else len(layers) - 1
        chance = max(equal + fitting * _cell_log10(view), model.habit_log10(run))
        name = "arange" if is_arange else "constant"
        found.append(FillerRun(int(model.first[run]), int(model.last[run]), name, layers, chance))
    return found


def _running_runs(view: TraceView, rows: NDArray[np.bool_]) -> list[FillerRun]:
    """Rows of consecutive ids that go on from row to row, and, if a whole array was numbered, over layers."""
    E, K, layers = view.num_experts, view.top_k, view.checked_layers
    width = view.trace.rows.expert_ids.shape[1]
    axis = view.axis_position[layers]
    variants = {
        (K % E, tuple([0] * len(layers))),
        (width * K % E, tuple((axis * K % E).tolist())),
        (view.trace.model.num_hidden_layers * K % E, tuple((view.layers[layers] * K % E).tolist())),
    }
    places = log10(float(rows.sum() * E * len(variants)))
    index = np.flatnonzero(rows).astype(np.int64)
    for layer in (layers[0], layers[-1]):  # two cells rule out nearly every row
        step = (view.ids[index, layer].astype(np.int64) - view.ids[index, layer, :1]) % E
        index = index[(step == np.arange(K) % E).all(axis=1)]
    found: list[FillerRun] = []
    for row_step, layer_steps in sorted(variants):
        for first, last in _running_variant(view, index, row_step, np.asarray(layer_steps, dtype=np.int64)):
            chance = places + _running_log10(view, first, last)
            found.append(FillerRun(first, last, "running-arange", layers, chance))
    return found


def _running_variant(
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


def _running_log10(view: TraceView, first: int, last: int) -> float:
    """Chance that the numbers of all experts seen in a run follow the pattern, given one common start."""
    total = 0.0
    for layer in view.checked_layers.tolist():
        distinct = len(np.unique(view.ids[first : min(last, first + 4096), layer]))
        chance = label_log10(view.num_experts, distinct)
        if not _order_known(view):
            chance = min(0.0, chance + order_log10(view.top_k, distinct))
        total += chance
    return total


def _nan_runs(view: TraceView, rows: NDArray[np.bool_]) -> list[FillerRun]:
    """Requests in which the deepest layers are arange(K) in every row."""
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
        numbers = log10(float(len(view.trace.requests) * len(layers))) + len(deepest) * _cell_log10(view)
        chance = max(numbers, _nan_habit_log10(view, outside & fits, outside, deepest, last - first))
        found.append(FillerRun(first, last, "arange-from-layer", deepest, chance))
    return found


def _num_last(flags: NDArray[np.bool_]) -> int:
    """How many flags at the end are set."""
    return len(flags) if flags.all() else int(np.argmin(flags[::-1]))


def _nan_habit_log10(
    view: TraceView,
    candidates: NDArray[np.bool_],
    outside: NDArray[np.bool_],
    layers: NDArray[np.int64],
    length: int,
) -> float:
    """Chance of `length` rows of arange(K) in `layers`, from its share in rows of other requests."""
    cells = view.ids[candidates][:, layers]
    share = (cells == np.arange(view.top_k)).all(axis=(1, 2)).sum() / max(1, int(outside.sum()))
    return min(0.0, log10(float(len(view.trace.requests))) + length * log10(float(share)))
