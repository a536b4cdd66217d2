"""The kinds of mismatch that a noise floor is measured for, and how they cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.align import Alignment
from moeinspect.analysis.compare.cellwise import CellResults

Name = Literal["set", "far", "order", "weight"]

WINDOWS = (1, 2, 4, 8, 16, 32, 64)
"""Lengths, in rows, of the spans that are looked at."""

SHORTEST_OF_A_LAYER = 4
"""Fewest rows of one layer that are looked at as a span."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Cells [R, L] that mismatch in one way. `far`: two experts differ or more, as rounding rarely has it."""

    name: Name
    mismatch: NDArray[np.bool_]


def kinds_of(alignment: Alignment, cells: CellResults) -> Iterator[Kind]:
    """Every kind that the two traces can be compared in."""
    yield Kind("set", cells.set_mismatch)
    top_k = max(alignment.a.model.top_k, alignment.b.model.top_k)
    if top_k > 1:
        yield Kind("far", cells.set_mismatch & (cells.overlap + 2 <= top_k))
    if cells.order_mismatch is not None:
        yield Kind("order", cells.order_mismatch)
    if cells.weight_mismatch is not None:
        yield Kind("weight", cells.weight_mismatch)


def by_request(alignment: Alignment, cells: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Cells counted per request and layer [P, L]."""
    total = np.zeros((len(cells) + 1, cells.shape[1]), dtype=np.int64)
    np.cumsum(cells, axis=0, out=total[1:])
    return np.asarray(total[alignment.pair_start[1:]] - total[alignment.pair_start[:-1]])


def dispersion(counts: NDArray[np.int64], sizes: NDArray[np.int64]) -> float:
    """How much more counts [n, L] in groups of these sizes vary than independent ones would; at least 1.

    Flips come in clusters: one changes the hidden state of its token, and of those after it.
    """
    groups = int((sizes.sum(axis=1) > 0).sum())
    whole = np.maximum(1, sizes.sum(axis=0))
    expected = sizes * (counts.sum(axis=0) / whole)
    if groups < 2 or not expected.sum():
        return 1.0
    spread = float(((counts - expected) ** 2).sum() / expected.sum())
    return max(1.0, spread * groups / (groups - 1))


def window_counts(
    alignment: Alignment, values: NDArray[np.integer] | NDArray[np.bool_], length: int
) -> NDArray[np.int64]:
    """Sums [n, ...] over every `length` consecutive rows of one request, by first row; -1 across requests."""
    total = np.zeros((len(values) + 1, *values.shape[1:]), dtype=np.int64)
    np.cumsum(values, axis=0, out=total[1:])
    counts = total[length:] - total[:-length]
    if length > 1:
        counts[alignment.pair[length - 1 :] != alignment.pair[: len(values) - length + 1]] = -1
    return np.asarray(counts)
