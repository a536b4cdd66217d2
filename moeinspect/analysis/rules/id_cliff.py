"""`id-cliff`: no id above 255 though there are more experts: ids that were squeezed into one byte."""

from __future__ import annotations

import math

import numpy as np

from moeinspect.analysis.findings import Finding
from moeinspect.analysis.rules.chance import LOG10_LIMIT
from moeinspect.analysis.rules.grouping import layers_text
from moeinspect.analysis.rules.view import TraceView

LARGEST_BYTE = 255
MIN_IDS = 10_000


def check_id_cliff(view: TraceView) -> list[Finding]:
    """More than 256 experts, at least 10,000 ids not counted by other rules, none above 255."""
    if view.num_experts <= LARGEST_BYTE + 1:
        return []
    cells = view.checked[:, None] & ~view.flagged & ~view.exempt[None, :]
    num_ids = int(cells.sum()) * view.top_k
    if num_ids < MIN_IDS:
        return []
    distinct: list[int] = []
    for place in view.checked_layers.tolist():
        ids = view.ids[cells[:, place], place]
        if ids.size and int(ids.max()) > LARGEST_BYTE:
            return []
        distinct.append(int((np.bincount(ids.reshape(-1), minlength=1) > 0).sum()))
    chance = sum(_below_log10(view.num_experts, seen) for seen in distinct)
    if chance >= LOG10_LIMIT:
        return []
    layers = tuple(view.layers[cells.any(axis=0)].tolist())
    cells = view.claim(cells)
    return [
        Finding(
            rule="id-cliff",
            severity="warning",
            message=f"no id above {LARGEST_BYTE} among {num_ids} ids of {view.num_experts} experts, "
            f"{layers_text(layers)}",
            count=int(cells.sum()),
            input=view.input,
            layers=layers,
            evidence={
                "num_ids": num_ids,
                "num_experts": view.num_experts,
                "distinct_per_layer": distinct,
                "chance_log10": round(chance, 1),
            },
        )
    ]


def _below_log10(num_experts: int, seen: int) -> float:
    """Chance that all experts seen in a layer bear one-byte numbers, if numbers are dealt at random."""

    def choose(n: int, k: int) -> float:
        return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)

    return (choose(LARGEST_BYTE + 1, seen) - choose(num_experts, seen)) / math.log(10)
