"""What a report says of the noise floor: how high it is, and what exceeds it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from moeinspect.analysis.compare.comparison import Comparison
from moeinspect.analysis.compare.floor import FloorVerdict
from moeinspect.analysis.compare.floor.judge import Excess
from moeinspect.analysis.compare.wording import place_text, region_of
from moeinspect.analysis.findings import Finding, LayerStats, Severity
from moeinspect.analysis.requests import request_evidence
from moeinspect.analysis.rules.grouping import layers_text

_WHAT = {
    "set": "hold another expert set",
    "far": "differ in two experts or more",
    "order": "hold the same experts in another order",
    "weight": "have other weights",
}


def with_floor(layers: tuple[LayerStats, ...], verdict: FloorVerdict | None) -> tuple[LayerStats, ...]:
    """Layers with `noise_floor`, the floor's share of set mismatches, if there is a floor."""
    if verdict is None:
        return layers
    rates = [None if np.isnan(rate) else float(rate) for rate in verdict.rates]
    return tuple(
        replace(one, extra={**one.extra, "noise_floor": rate})
        for one, rate in zip(layers, rates, strict=True)
    )


def floor_findings(comparison: Comparison) -> Iterator[Finding]:
    """One note `noise-floor`, then one `above-floor` for every place that exceeds it.

    Where near-ties explain all the mismatches of a place, it is a note.
    """
    verdict = comparison.floor
    if verdict is None:
        return
    yield _height(verdict)
    for excess in verdict.excesses:
        yield _above(comparison, excess)


def _height(verdict: FloorVerdict) -> Finding:
    floor = verdict.floor
    count, cells = floor.kinds["set"].count, floor.compared
    share = float(count.sum() / max(1, cells.sum()))
    by_layer = count / np.maximum(1, cells)
    if floor.is_zero:
        text = f"the noise floor is 0: B and {floor.path} are equal, so no mismatch is put down to noise"
    else:
        text = (
            f"noise floor between B and {floor.path}: {_percent(share)} of {int(cells.sum()):,} cells hold "
            f"another expert set, {_percent(by_layer.min())} to {_percent(by_layer.max())} by layer"
        )
    if floor.diverged:
        text += f"; {floor.diverged} outputs part"
    evidence = {
        "share": share,
        "cells": int(cells.sum()),
        "by_layer": [
            {"layer": int(layer), "compared": int(whole), "set_mismatch": float(part)}
            for layer, whole, part in zip(floor.layers, cells, by_layer, strict=True)
        ],
        "kinds": {name: int(kind.count.sum()) for name, kind in floor.kinds.items()},
        "outputs_parted": floor.diverged,
        "output_tokens": floor.output_tokens,
    }
    return Finding("noise-floor", "note", text, 0, evidence=evidence)


def _above(comparison: Comparison, excess: Excess) -> Finding:
    alignment = comparison.alignment
    layers = tuple(int(layer) for layer in alignment.layers[list(excess.places)])
    floor = "that was not measured" if excess.floor is None else f"of {_percent(excess.floor)}"
    figures = f"{_percent(excess.share)} of cells {_WHAT[excess.kind]} against a floor {floor}"
    severity: Severity = "error" if _has_unexplained(comparison, excess) else "note"
    evidence = {"kind": excess.kind, "share": excess.share, "floor": excess.floor, "cells": excess.size}
    whole = len(layers) == len(alignment.layers) > 1
    if excess.rows is None:
        where = f"all {len(layers)} MoE layers" if whole else layers_text(layers)
        return Finding(
            "above-floor", severity, f"{where}: {figures}", excess.count, layers=layers, evidence=evidence
        )
    pair = int(alignment.pair[excess.rows.start])
    request = alignment.pairing.pairs[pair][0]
    first = int(alignment.position[excess.rows.start])
    last = int(alignment.position[excess.rows.stop - 1]) + 1
    start_pos = int(alignment.a.requests.start_pos[request])
    rows, region = (
        (first - start_pos, last - start_pos),
        region_of(first, last, _prompt_len(comparison, request)),
    )
    return Finding(
        "above-floor",
        severity,
        f"{place_text(rows, region, layers, len(alignment.layers))}: {figures}",
        excess.count,
        request=alignment.request_id(pair),
        rows=rows,
        layers=layers,
        region=region,
        evidence={"positions": [first, last]} | evidence | request_evidence(alignment.a, request),
    )


def _prompt_len(comparison: Comparison, request: int) -> int:
    return int(comparison.a.requests.prompt_len[request])


def _has_unexplained(comparison: Comparison, excess: Excess) -> bool:
    """Whether a mismatch of this place is neither a near-tie nor after one."""
    cells, ties = comparison.cells, comparison.ties
    unexplained = {
        "set": cells.set_mismatch & ~ties.explained_sets,
        "far": cells.set_mismatch & ~ties.explained_sets,
        "order": None if cells.order_mismatch is None else cells.order_mismatch & ~ties.order_tie,
        "weight": None if cells.weight_mismatch is None else cells.weight_mismatch & ~ties.weight_cascade,
    }[excess.kind]
    rows = slice(None) if excess.rows is None else excess.rows
    return unexplained is not None and bool(unexplained[rows][:, list(excess.places)].any())


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
