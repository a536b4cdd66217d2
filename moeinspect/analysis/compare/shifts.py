"""Looks for rows that hold a neighbour's routing, and for layers that hold a neighbouring layer's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.align import Alignment, axis_of
from moeinspect.analysis.cells import gather, set_keys
from moeinspect.analysis.compare.cellwise import CellResults
from moeinspect.analysis.compare.moved import AGREES, MovedRows

_MOST_LAGS = 16
"""Shifts of one request that are reported."""

_RUN_AGREES = 0.75
"""Share of cells that have to agree at the lag over a whole run; rounding changes some."""

_MIN_CELLS = 8
_LAYER_AGREES, _LAYER_BETTER_BY = 0.6, 0.35
_SAMPLED_ROWS = 1024


@dataclass(frozen=True, slots=True)
class RowShift:
    """Rows of one request in which A holds what B has `lag` rows later.

    `start` and `end` are places among the R comparable rows. Agreements are shares of cells with equal
    sets, over these rows: at the lag, and without a shift.
    """

    pair: int
    start: int
    end: int
    lag: int
    agreement: float
    unshifted: float


@dataclass(frozen=True, slots=True)
class LayerShift:
    """Layers in which A holds what B has `shift` MoE layers higher; `places` on the common layers."""

    shift: int
    places: tuple[int, ...]
    agreement: float
    unshifted: float
    rows: int
    """Rows that were looked at."""
    copies: bool
    """A holds these rows at their own layers, too."""


def find_row_shifts(alignment: Alignment, cells: CellResults, moved: MovedRows) -> list[RowShift]:
    """Runs of rows that hold, at one lag, rows of the same request."""
    lag = np.where(moved.in_request, moved.source - alignment.b_row, 0)
    found = []
    for pair in np.unique(alignment.pair[lag != 0]).tolist():
        own = alignment.rows_of_pair(pair)
        found += _shifts_of_pair(alignment, cells, pair, own, lag[own])
    return found


def find_layer_shifts(alignment: Alignment, cells: CellResults) -> list[LayerShift]:
    """Groups of layers that agree overwhelmingly better with another MoE layer of B."""
    rows = np.flatnonzero(cells.set_mismatch.any(axis=1))
    b_layers = np.asarray(alignment.b.model.moe_layers, dtype=np.int64)
    if len(b_layers) < 2 or len(rows) < _MIN_CELLS:
        return []
    rows = rows[:: -(-len(rows) // _SAMPLED_ROWS)]
    b_axis = axis_of(alignment.b, b_layers)
    keys_a = set_keys(gather(alignment.a.rows.expert_ids, alignment.a_row[rows], alignment.a_axis))
    keys_b = set_keys(gather(alignment.b.rows.expert_ids, alignment.b_row[rows], b_axis))
    own = np.searchsorted(b_layers, alignment.layers)
    unshifted = np.asarray(np.asarray(keys_a == keys_b[:, own]).mean(axis=0))
    wrong = np.flatnonzero(unshifted <= 1 - _LAYER_BETTER_BY)
    agreement = np.stack([np.asarray(keys_a[:, [place]] == keys_b).mean(axis=0) for place in wrong] or [own])
    best = agreement.argmax(axis=1)
    held = agreement.max(axis=1)
    is_shifted = (held >= _LAYER_AGREES) & (held - unshifted[wrong] >= _LAYER_BETTER_BY)
    in_place = dict(zip(own.tolist(), (unshifted > 1 - _LAYER_BETTER_BY).tolist(), strict=True))
    shifts = best - own[wrong]
    found = []
    for shift in np.unique(shifts[is_shifted]).tolist():
        members = np.flatnonzero(is_shifted & (shifts == shift))
        found.append(
            LayerShift(
                shift=shift,
                places=tuple(wrong[members].tolist()),
                agreement=float(held[members].mean()),
                unshifted=float(unshifted[wrong[members]].mean()),
                rows=len(rows),
                copies=all(in_place.get(int(source), False) for source in best[members]),
            )
        )
    return found


def _shifts_of_pair(
    alignment: Alignment, cells: CellResults, pair: int, own: slice, lag: NDArray[np.int64]
) -> list[RowShift]:
    """Runs of one lag, the most frequent lag first; rows between that agree with it are part of them."""
    position = alignment.position[own]
    compared = np.maximum(1, cells.compared[own].sum(axis=1))
    unshifted = 1 - cells.set_mismatch[own].sum(axis=1) / compared
    taken = np.zeros(len(position), dtype=bool)
    lags, counts = np.unique(lag[lag != 0], return_counts=True)
    found = []
    for one in lags[np.argsort(-counts, kind="stable")][:_MOST_LAGS].tolist():
        agreement = _agreement_at(alignment, pair, own, one)
        strong = (lag == one) & ~taken
        neutral = (agreement >= AGREES) & ~taken
        for start, end in _runs(strong | neutral, position):
            inside = np.flatnonzero(strong[start:end])
            if len(inside) < 2 or len(inside) * len(alignment.layers) < _MIN_CELLS:
                continue
            start, end = start + int(inside[0]), start + int(inside[-1]) + 1
            if agreement[start:end].mean() < _RUN_AGREES:
                continue
            taken[start:end] = True
            found.append(
                RowShift(
                    pair=pair,
                    start=own.start + start,
                    end=own.start + end,
                    lag=one,
                    agreement=float(agreement[start:end].mean()),
                    unshifted=float(unshifted[start:end].mean()),
                )
            )
    return sorted(found, key=lambda shift: shift.start)


def _agreement_at(alignment: Alignment, pair: int, own: slice, lag: int) -> NDArray[np.float64]:
    """Share of layers in which A's row equals what B has `lag` rows later [n]; 0 where B has none."""
    rows_b = alignment.b.row_range(alignment.pairing.pairs[pair][1])
    source = alignment.b_row[own] + lag
    there = np.flatnonzero((source >= rows_b.start) & (source < rows_b.stop))
    keys_a = set_keys(gather(alignment.a.rows.expert_ids, alignment.a_row[own][there], alignment.a_axis))
    keys_b = set_keys(gather(alignment.b.rows.expert_ids, source[there], alignment.b_axis))
    agreement = np.zeros(len(source))
    agreement[there] = (keys_a == keys_b).mean(axis=1)
    return agreement


def _runs(wanted: NDArray[np.bool_], position: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Maximal runs of wanted rows at consecutive positions, as [start, end)."""
    index = np.flatnonzero(wanted)
    if not len(index):
        return
    cut = np.flatnonzero((np.diff(index) != 1) | (np.diff(position[index]) != 1)) + 1
    for run in np.split(index, cut):
        yield int(run[0]), int(run[-1]) + 1
