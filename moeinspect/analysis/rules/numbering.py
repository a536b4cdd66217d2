"""How likely a layer's experts bear the numbers that a pattern asks for."""

from __future__ import annotations

from moeinspect.analysis.rules.chance import label_log10, order_log10
from moeinspect.analysis.rules.view import TraceView


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
