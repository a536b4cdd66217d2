"""A run of rows that follows a filler pattern, and how likely experts bear the numbers it asks for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.rules.chance import label_log10, order_log10
from moeinspect.analysis.rules.view import TraceView


@dataclass(frozen=True, slots=True)
class FillerRun:
    """Rows [first, last) of the file that follow `pattern` in the layers at `places` of axis M."""

    first: int
    last: int
    pattern: str
    places: NDArray[np.int64]
    chance_log10: float


def numbers_log10(view: TraceView, distinct: int) -> float:
    """Chance that a layer's numbering gives `distinct` experts the numbers asked for, slot by slot.

    Where the order of slots means nothing, any order of each cell is as good.
    """
    chance = label_log10(view.num_experts, distinct)
    if view.trace.run.slot_order == "router":
        return chance
    return min(0.0, chance + order_log10(view.top_k, distinct))


def cell_log10(view: TraceView) -> float:
    """Chance that a layer's numbering turns a given cell into a given other."""
    return numbers_log10(view, view.top_k)
