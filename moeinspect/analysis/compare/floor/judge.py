"""Which mismatches exceed the noise floor: over all layers, in one layer, or in one span of rows.

Rounding of the kind that was measured may be half as frequent again before it counts, and what exceeds
that has to be beyond chance, with the clustering of flips allowed for. Layers that exceed the floor are
found first, then spans in the others, then the layers and all of them together once more without those.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.align import Alignment
from moeinspect.analysis.compare.cellwise import CellResults
from moeinspect.analysis.compare.floor.kinds import Kind, Name, by_request, dispersion, kinds_of
from moeinspect.analysis.compare.floor.largedev import log_excess, log_poisson_tail
from moeinspect.analysis.compare.floor.measure import KindFloor, NoiseFloor, divergences
from moeinspect.analysis.compare.floor.spans import dense_spans

SLACK = 1.5
"""How many times as frequent as in the floor a mismatch may be."""

LOG_CHANCE = float(np.log(1e-6))
"""What is less likely than this is no chance."""

LOG_TOKEN_CHANCE = float(np.log(1e-3))
"""The same for outputs that part, of which there is one for each request at most."""

MOST = 0.5
"""A layer in which B and B2 differ by two experts in more cells than this is no noise and excuses nothing."""


@dataclass(frozen=True, slots=True)
class Excess:
    """Where one kind of mismatch exceeds the floor: cells of some layers, and of some rows if not all."""

    kind: Name
    places: tuple[int, ...]
    """Places among the compared layers."""
    rows: slice | None
    """Rows of one request among the R compared ones; None: all."""
    count: int
    size: int
    share: float
    floor: float | None
    """The floor's share there; None: not measured."""


@dataclass(frozen=True, slots=True)
class FloorVerdict:
    """What of a comparison is within the floor; masks [R, L]."""

    floor: NoiseFloor
    excesses: tuple[Excess, ...]
    within: Mapping[Name, NDArray[np.bool_]]
    """Mismatches of each kind that the floor excuses."""
    rates: NDArray[np.float64]
    """Share of set mismatches in the floor per compared layer [L]; NaN: not measured."""
    tokens_within: bool
    """Outputs part no more often than in the floor."""


def judge(alignment: Alignment, cells: CellResults, floor: NoiseFloor) -> FloorVerdict:
    """Judges the mismatches of A against B by the floor between B and B2."""
    place = np.searchsorted(floor.layers, alignment.layers)
    place = np.minimum(place, len(floor.layers) - 1)
    known = floor.layers[place] == alignment.layers
    size = np.where(known, floor.compared[place], 0)
    no_noise = _no_noise(floor, place, size)
    excesses: list[Excess] = []
    within: dict[Name, NDArray[np.bool_]] = {}
    for kind in kinds_of(alignment, cells):
        measured = floor.kinds.get(kind.name)
        if measured is None or floor.is_zero:
            within[kind.name] = np.zeros_like(kind.mismatch)
            continue
        found, beyond = _judge_kind(alignment, cells, kind, measured, place, size, no_noise)
        excesses += found
        within[kind.name] = kind.mismatch & ~beyond
    if "far" in within:
        far = next(kind.mismatch for kind in kinds_of(alignment, cells) if kind.name == "far")
        within["set"] = within["set"] & (within["far"] | ~far)
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = np.where(size > 0, floor.kinds["set"].count[place] / size, np.nan)
    return FloorVerdict(floor, tuple(excesses), within, rates, _tokens_within(alignment, floor))


def _judge_kind(
    alignment: Alignment,
    cells: CellResults,
    kind: Kind,
    measured: KindFloor,
    place: NDArray[np.int64],
    size: NDArray[np.int64],
    no_noise: NDArray[np.bool_],
) -> tuple[list[Excess], NDArray[np.bool_]]:
    """Where one kind exceeds the floor, and the cells [R, L] that no floor excuses."""
    count = np.where(size > 0, measured.count[place], 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.where(size > 0, count / size, np.nan)
    beyond = np.zeros_like(kind.mismatch)
    found = []
    for layer in np.flatnonzero(no_noise & kind.mismatch.any(axis=0)).tolist():
        found.append(_excess(cells, kind, beyond, (layer,), None, float(rate[layer])))
    beyond[:, no_noise] = True
    for again in (False, True):
        counted = cells.compared & ~beyond
        for layer in _layers_above(alignment, kind, counted, count, size, measured):
            found.append(_excess(cells, kind, beyond, (layer,), None, float(rate[layer])))
            beyond[:, layer] = True
        if again:
            break
        for span in dense_spans(alignment, kind, counted & ~beyond, rate, size, measured, SLACK, LOG_CHANCE):
            found.append(
                _excess(cells, kind, beyond, span.places, span.rows, float(rate[list(span.places)].mean()))
            )
            beyond[span.rows, list(span.places)] = True
    rest = cells.compared & ~beyond
    left = np.flatnonzero(rest.any(axis=0))
    spread = _spread(alignment, kind, rest, measured.by_request_all, together=True)
    total, whole = float((kind.mismatch & rest).sum()), float(rest.sum())
    log_chance = log_excess(
        total / spread, whole / spread, count[left].sum() / spread, size[left].sum() / spread, SLACK
    )
    if log_chance < LOG_CHANCE:
        floor_rate = float(count[left].sum() / max(1, size[left].sum()))
        found.append(_excess(cells, kind, beyond, tuple(left.tolist()), None, floor_rate))
        beyond[:] = True
    return found, beyond


def _no_noise(floor: NoiseFloor, place: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Compared layers [L] whose floor is not measured, or near what unrelated choices would give."""
    far = floor.kinds.get("far", floor.kinds["set"]).count[place]
    return np.asarray((size == 0) | (far > MOST * size))


def _layers_above(
    alignment: Alignment,
    kind: Kind,
    counted: NDArray[np.bool_],
    count: NDArray[np.int64],
    size: NDArray[np.int64],
    measured: KindFloor,
) -> Iterator[int]:
    spread = _spread(alignment, kind, counted, measured.by_request, together=False)
    ours, whole = (kind.mismatch & counted).sum(axis=0), counted.sum(axis=0)
    log_chance = log_excess(ours / spread, whole / spread, count / spread, size / spread, SLACK)
    above = (log_chance < LOG_CHANCE - np.log(len(size))) & counted.any(axis=0)
    yield from np.flatnonzero(above).tolist()


def _spread(
    alignment: Alignment, kind: Kind, counted: NDArray[np.bool_], floor: float, *, together: bool
) -> float:
    """Dispersion by request, the floor's or A's own, whichever is larger."""
    counts, sizes = by_request(alignment, kind.mismatch & counted), by_request(alignment, counted)
    if together:
        counts, sizes = counts.sum(axis=1)[:, None], sizes.sum(axis=1)[:, None]
    return max(floor, dispersion(counts, sizes))


def _excess(
    cells: CellResults,
    kind: Kind,
    beyond: NDArray[np.bool_],
    places: tuple[int, ...],
    rows: slice | None,
    floor: float,
) -> Excess:
    columns = list(places)
    of = slice(None) if rows is None else rows
    counted = (cells.compared & ~beyond)[of][:, columns]
    count, size = int((kind.mismatch[of][:, columns] & counted).sum()), int(counted.sum())
    return Excess(
        kind.name, places, rows, count, size, count / max(1, size), None if np.isnan(floor) else floor
    )


def _tokens_within(alignment: Alignment, floor: NoiseFloor) -> bool:
    """The floor's rate is taken one request higher than it was seen, since that is rare in short runs."""
    diverged, tokens = divergences(alignment)
    if floor.is_zero or not floor.output_tokens:
        return False
    rate = SLACK * (floor.diverged + 1) / floor.output_tokens
    return bool(log_poisson_tail(diverged, rate * tokens) >= LOG_TOKEN_CHANCE)
