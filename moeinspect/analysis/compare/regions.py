"""Parts of a request in which faults like to sit, and what the comparison saw at each layer of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.align import Alignment
from moeinspect.analysis.compare.cellwise import CellResults
from moeinspect.analysis.compare.neartie import NearTies
from moeinspect.analysis.findings import LayerStats
from moeinspect.trace.schema import Origin


def region_rows(alignment: Alignment) -> dict[str, NDArray[np.bool_]]:
    """Rows [R] of each region, by name, as trace A tells them; regions overlap.

    `chunk_boundary` is the last row of one prefill step and the first row of the next; `accepted_draft`
    are rows that a verify step computed.
    """
    a = alignment.a
    origin = a.rows.origin[alignment.a_row]
    cached = alignment.position < a.requests.cached_tokens[alignment.a_request]
    return {
        "prompt": alignment.is_prompt,
        "output": ~alignment.is_prompt,
        "chunk_boundary": _at_chunk_boundary(alignment, origin),
        "cached_prefix": cached | (origin == Origin.PREFIX_CACHE),
        "accepted_draft": origin == Origin.VERIFY,
    }


def layer_stats(
    alignment: Alignment, cells: CellResults, ties: NearTies, regions: Mapping[str, NDArray[np.bool_]]
) -> tuple[LayerStats, ...]:
    """One record per common MoE layer; `regions` as `region_rows` gives them."""
    top_k = max(alignment.a.model.top_k, alignment.b.model.top_k)
    compared = cells.compared.sum(axis=0)
    overlap = np.where(cells.compared, cells.overlap, 0).sum(axis=0, dtype=np.int64)
    shares = _region_shares(regions, cells)
    explained = (ties.explained_sets & cells.set_mismatch).sum(axis=0)
    mismatches = cells.set_mismatch.sum(axis=0)
    return tuple(
        LayerStats(
            layer=int(layer),
            compared=int(compared[i]),
            set_mismatch=share(mismatches[i], compared[i]),
            order_mismatch=_share_of(cells.order_mismatch, i, compared[i]),
            overlap_mean=share(overlap[i], compared[i] * top_k),
            extra={
                "weight_mismatch": _share_of(cells.weight_mismatch, i, compared[i]),
                "chance_overlap": chance_overlap(alignment),
                "near_tie": share(explained[i], mismatches[i]) if ties.has_margins else None,
                "regions": {name: values[i] for name, values in shares.items()},
            },
        )
        for i, layer in enumerate(alignment.layers)
    )


def chance_overlap(alignment: Alignment) -> float:
    """Share of experts that two unrelated sets have in common: (K * K / E) / K, at most 1."""
    model = alignment.a.model
    return min(1.0, model.top_k / max(1, model.num_experts))


def share(part: int | np.integer, whole: int | np.integer) -> float | None:
    """`part / whole`, None where there is no whole."""
    return float(part) / float(whole) if whole else None


def _share_of(mismatch: NDArray[np.bool_] | None, layer: int, compared: np.integer) -> float | None:
    return None if mismatch is None else share(mismatch[:, layer].sum(), compared)


def _region_shares(
    regions: Mapping[str, NDArray[np.bool_]], cells: CellResults
) -> dict[str, list[dict[str, int | float | None]]]:
    """Per region and layer, the compared cells and the share of set mismatches; empty regions left out."""
    shares = {}
    for name, rows in regions.items():
        if not rows.any():
            continue
        compared = cells.compared[rows].sum(axis=0)
        mismatches = cells.set_mismatch[rows].sum(axis=0)
        shares[name] = [
            {"compared": int(whole), "set_mismatch": share(part, whole)}
            for part, whole in zip(mismatches, compared, strict=True)
        ]
    return shares


def _at_chunk_boundary(alignment: Alignment, origin: NDArray[np.uint8]) -> NDArray[np.bool_]:
    rows = alignment.a.rows
    step, worker = rows.step[alignment.a_row], rows.worker[alignment.a_row]
    follows = (np.diff(alignment.pair) == 0) & (np.diff(alignment.position) == 1)
    both_prefill = (origin[1:] == Origin.PREFILL) & (origin[:-1] == Origin.PREFILL)
    known = (step[1:] >= 0) & (step[:-1] >= 0)
    seam = follows & both_prefill & known & (np.diff(step) != 0) & (worker[1:] == worker[:-1])
    at_boundary = np.zeros(len(alignment), dtype=bool)
    at_boundary[1:] |= seam
    at_boundary[:-1] |= seam
    return at_boundary
