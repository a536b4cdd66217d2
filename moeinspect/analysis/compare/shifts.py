"""Looks for rows that hold a neighbour's routing, and for layers that hold a neighbouring layer's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.align import Alignment
from moeinspect.analysis.cells import gather, row_keys, set_keys
from moeinspect.analysis.compare.cellwise import CellResults

LAGS = (-3, -2, -1, 1, 2, 3)
"""Shifts that are tried anyway, beside 0."""

_WIDE_ROWS = 4
"""Whole rows that must be found at a wider lag before it is tried."""

_ROW_AGREES = 0.75
_ROW_BETTER_BY = 0.5
_RUN_AGREES = 0.9
_MIN_CELLS = 8
_LAYER_AGREES, _LAYER_DISAGREES = 0.9, 0.5
_SAMPLED_ROWS = 4096


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


def find_row_shifts(alignment: Alignment, cells: CellResults) -> list[RowShift]:
    """Runs of mismatching rows that agree overwhelmingly better with a neighbouring row."""
    mismatching = np.asarray(cells.set_mismatch.any(axis=1))
    found = []
    for pair in range(len(alignment.pairing.pairs)):
        own = alignment.rows_of_pair(pair)
        if mismatching[own].sum() >= 2:
            found += _shifts_of_pair(alignment, pair, own)
    return found


def find_layer_shifts(alignment: Alignment, cells: CellResults) -> list[LayerShift]:
    """Groups of layers that agree overwhelmingly better with a neighbouring MoE layer."""
    rows = np.flatnonzero(cells.set_mismatch.any(axis=1))
    num_layers = len(alignment.layers)
    if num_layers < 2 or len(rows) < _MIN_CELLS:
        return []
    rows = rows[:: -(-len(rows) // _SAMPLED_ROWS)]
    keys_a = set_keys(gather(alignment.a.rows.expert_ids, alignment.a_row[rows], alignment.a_axis))
    keys_b = set_keys(gather(alignment.b.rows.expert_ids, alignment.b_row[rows], alignment.b_axis))
    unshifted = np.asarray(np.asarray(keys_a == keys_b).mean(axis=0))
    agreement = np.zeros((len(LAGS), num_layers))
    for i, shift in enumerate(LAGS):
        held = slice(max(0, -shift), num_layers - max(0, shift))
        source = slice(max(0, shift), num_layers - max(0, -shift))
        if abs(shift) < num_layers:
            agreement[i, held] = (keys_a[:, held] == keys_b[:, source]).mean(axis=0)
    shifted = (agreement.max(axis=0) >= _LAYER_AGREES) & (unshifted <= _LAYER_DISAGREES)
    return [
        LayerShift(
            shift=shift,
            places=tuple(int(place) for place in places),
            agreement=float(agreement[i, places].mean()),
            unshifted=float(unshifted[places].mean()),
            rows=len(rows),
        )
        for i, shift in enumerate(LAGS)
        if len(places := np.flatnonzero(shifted & (agreement.argmax(axis=0) == i)))
    ]


def _shifts_of_pair(alignment: Alignment, pair: int, own: slice) -> list[RowShift]:
    lags, agreement, unshifted = _row_agreements(alignment, pair, own)
    position = alignment.position[own]
    taken = np.zeros(len(position), dtype=bool)
    found = []
    for i in np.argsort(-(agreement >= _ROW_AGREES).sum(axis=1), kind="stable"):
        strong = (agreement[i] >= _ROW_AGREES) & (agreement[i] - unshifted >= _ROW_BETTER_BY) & ~taken
        neutral = (agreement[i] >= _RUN_AGREES) & ~taken
        for start, end in _runs(strong | neutral, position):
            inside = np.flatnonzero(strong[start:end])
            if len(inside) < 2 or len(inside) * len(alignment.layers) < _MIN_CELLS:
                continue
            start, end = start + int(inside[0]), start + int(inside[-1]) + 1
            if agreement[i, start:end].mean() < _RUN_AGREES:
                continue
            taken[start:end] = True
            found.append(
                RowShift(
                    pair=pair,
                    start=own.start + start,
                    end=own.start + end,
                    lag=int(lags[i]),
                    agreement=float(agreement[i, start:end].mean()),
                    unshifted=float(unshifted[start:end].mean()),
                )
            )
    return sorted(found, key=lambda shift: shift.start)


def _row_agreements(
    alignment: Alignment, pair: int, own: slice
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Lags [n], the share of layers in which A's row equals B's at each [n, rows], and at lag 0 [rows]."""
    b, request_b = alignment.b, alignment.pairing.pairs[pair][1]
    rows_b = b.row_range(request_b)
    keys_a = set_keys(gather(alignment.a.rows.expert_ids, alignment.a_row[own], alignment.a_axis))
    keys_b = set_keys(b.rows.expert_ids[rows_b][:, alignment.b_axis])
    place = alignment.b_row[own] - rows_b.start
    lags = np.concatenate([np.asarray(LAGS), _wide_lags(keys_a, keys_b, place)])
    agreement = np.zeros((len(lags), len(place)))
    for i, lag in enumerate(lags.tolist()):
        there = (place + lag >= 0) & (place + lag < len(keys_b))
        agreement[i, there] = (keys_a[there] == keys_b[place[there] + lag]).mean(axis=1)
    return lags, agreement, (keys_a == keys_b[place]).mean(axis=1)


def _wide_lags(
    keys_a: NDArray[np.uint64], keys_b: NDArray[np.uint64], place: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The lag beyond `LAGS` at which most of A's wrong rows stand in B, if there are `_WIDE_ROWS` or more.

    Rows that B holds several times tell no lag and are left out.
    """
    whole_a, whole_b = row_keys(keys_a), row_keys(keys_b)
    once, first, counts = np.unique(whole_b, return_index=True, return_counts=True)
    once, first = once[counts == 1], first[counts == 1]
    wrong = np.flatnonzero(whole_a != whole_b[place])
    if not len(once) or not len(wrong):
        return np.zeros(0, dtype=np.int64)
    at = np.minimum(np.searchsorted(once, whole_a[wrong]), len(once) - 1)
    found = once[at] == whole_a[wrong]
    lags, rows = np.unique(first[at][found] - place[wrong][found], return_counts=True)
    wide = np.abs(lags) > max(LAGS)
    lags, rows = lags[wide], rows[wide]
    best = lags[rows >= max(_WIDE_ROWS, rows.max(initial=0))][:1]
    return np.asarray(best, dtype=np.int64)


def _runs(wanted: NDArray[np.bool_], position: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Maximal runs of wanted rows at consecutive positions, as [start, end)."""
    index = np.flatnonzero(wanted)
    if not len(index):
        return
    cut = np.flatnonzero((np.diff(index) != 1) | (np.diff(position[index]) != 1)) + 1
    for run in np.split(index, cut):
        yield int(run[0]), int(run[-1]) + 1
