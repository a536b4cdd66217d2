"""`equal-layers`: two MoE layers that hold the same ids in every row, as if one had been read twice."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.findings import Finding
from moeinspect.analysis.rules.chance import LOG10_LIMIT, log10
from moeinspect.analysis.rules.hashing import row_hashes
from moeinspect.analysis.rules.numbering import numbers_log10
from moeinspect.analysis.rules.view import TraceView

_LOOK = 64
"""Rows that are compared first: they tell nearly all layers apart."""
_ROWS = 20_000
"""Rows, at most, from which it is read how far two layers go together."""


def check_equal_layers(view: TraceView) -> list[Finding]:
    """Layers whose ids are those of an earlier layer in every row that no other rule has counted.

    Two routers number their experts independently, so the numbers that the experts of one layer bear tell
    nothing of those of another. With few experts that alone is no proof; then it counts, too, in how many
    situations another layer parts from this one.
    """
    layers = view.checked_layers
    rows = np.flatnonzero(view.checked & ~view.unreadable & ~view.flagged[:, layers].any(axis=1))
    if len(layers) < 2 or not len(rows):
        return []
    pairs = len(layers) * (len(layers) - 1) / 2
    found, cells = [], np.zeros(view.flagged.shape, dtype=bool)
    for first, second in _equal_pairs(view, rows):
        used = len(np.unique(view.ids[rows, first]))
        chance = log10(pairs) + numbers_log10(view, used)
        if chance >= LOG10_LIMIT:
            chance += _apart_log10(view, rows, first)
        if chance >= LOG10_LIMIT:
            continue
        cells[rows, second] = True
        found.append((first, second, used, chance))
    view.claim(cells)
    return [
        Finding(
            rule="equal-layers",
            severity="warning",
            message=f"layers {view.layers[first]} and {view.layers[second]} hold the same ids in all "
            f"{len(rows):,} rows",
            count=len(rows),
            input=view.input,
            layers=(int(view.layers[first]), int(view.layers[second])),
            evidence={"rows": len(rows), "experts_used": used, "chance_log10": round(chance, 1)},
        )
        for first, second, used, chance in found
    ]


def _equal_pairs(view: TraceView, rows: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Each layer that equals an earlier one, with the first that it equals; places on axis M."""
    look = rows[:: -(-len(rows) // _LOOK)]
    seen: dict[bytes, list[int]] = {}
    pairs = []
    for place in view.checked_layers.tolist():
        alike = seen.setdefault(np.ascontiguousarray(view.ids[look, place]).tobytes(), [])
        equal = (one for one in alike if np.array_equal(view.ids[rows, one], view.ids[rows, place]))
        first = next(equal, None)
        if first is None:
            alike.append(place)
        else:
            pairs.append((first, place))
    return pairs


def _apart_log10(view: TraceView, rows: NDArray[np.int64], place: int) -> float:
    """Chance that a layer like the others goes together with the one at `place` in every situation.

    A situation is a pair of cells that the two hold in one row; each one beyond the cells of either layer is
    one in which the two part. The other layer that parts from it least often, three standard deviations
    less, tells how many such situations there should be; that there is none has the chance of exp(-number).
    However many rows show a situation, it counts once: rows of one state of the model are no evidence.
    """
    look = rows[:: -(-len(rows) // _ROWS)]
    own = _cells(view, look, place)
    parted = []
    for other in view.checked_layers.tolist():
        cells = _cells(view, look, other)
        together = len(np.unique(own * (int(cells.max()) + 1) + cells))
        if not np.array_equal(view.ids[look, other], view.ids[look, place]):
            parted.append(together - max(int(own.max()), int(cells.max())) - 1)
    fewest = min(parted, default=0)
    return -max(0.0, fewest - 3 * math.sqrt(fewest)) / math.log(10)


def _cells(view: TraceView, rows: NDArray[np.int64], place: int) -> NDArray[np.int64]:
    """Number of the cell that each of these rows [n] holds at `place`, from 0 on."""
    cells = row_hashes(view.ids[rows, place][:, np.newaxis], np.zeros(1, dtype=np.int64))
    return np.unique(cells, return_inverse=True)[1].astype(np.int64)
