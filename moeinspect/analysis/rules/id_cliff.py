"""`id-cliff`: no id above 255 though there are more experts: ids that were squeezed into one byte."""

from __future__ import annotations

import math

import numpy as np

from moeinspect.analysis.findings import Finding
from moeinspect.analysis.rules.chance import LOG10_LIMIT
from moeinspect.analysis.rules.grouping import layers_text
from moeinspect.analysis.rules.view import TraceView

LARGEST_BYTE = 255
UPPER_HALF = 128
"""Experts from here on are compared with those above the byte, so that a trace which uses low numbers only
(were experts sorted by use) shows no cliff."""
MIN_IDS = 10_000


def check_id_cliff(view: TraceView) -> list[Finding]:
    """More than 256 experts, at least 10,000 ids not counted by other rules, none above 255."""
    if view.num_experts <= LARGEST_BYTE + 1:
        return []
    cells = view.checked[:, None] & ~view.flagged & ~view.exempt[None, :]
    num_ids = int(cells.sum()) * view.top_k
    if num_ids < MIN_IDS:
        return []
    upper: list[int] = []
    for place in view.checked_layers.tolist():
        ids = view.ids[cells[:, place], place]
        if ids.size and int(ids.max()) > LARGEST_BYTE:
            return []
        used = np.bincount(ids.reshape(-1), minlength=LARGEST_BYTE + 1) > 0
        upper.append(int(used[UPPER_HALF:].sum()))
    chance = sum(_below_log10(view.num_experts, seen) for seen in upper)
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
                "experts_seen_from_128_to_255": upper,
                "chance_log10": round(chance, 1),
            },
        )
    ]


def _below_log10(num_experts: int, seen: int) -> float:
    """Chance that of the experts from 128 on all that a layer uses are below 256, were numbers random."""

    def choose(n: int, k: int) -> float:
        return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)

    in_byte, all_upper = LARGEST_BYTE + 1 - UPPER_HALF, num_experts - UPPER_HALF
    return (choose(in_byte, seen) - choose(all_upper, seen)) / math.log(10)
