"""Sorts the rows of a batch by expert."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from moeinspect.runtime.layers.tiles import cut


@dataclass(frozen=True, slots=True)
class DispatchPlan:
    """Rows standing expert by expert, each expert's padded to whole tiles.

    `source_row` [P] is the batch row at each padded place (row 0 where there is none: its result is not
    read); `result_row` [M] is the place of each choice. `experts` and `sizes` say which expert computes each
    successive piece of rows.
    """

    source_row: torch.Tensor
    result_row: torch.Tensor
    experts: list[int]
    sizes: list[int]


def plan_dispatch(
    experts: torch.Tensor, rows: torch.Tensor, num_experts: int, tile_sizes: Sequence[int] | None
) -> DispatchPlan:
    """Plans the work of M choices: expert `experts[i]` [M] is to run on batch row `rows[i]` [M].

    Pieces are tiles of the descending `tile_sizes`, or whole experts if there are none.
    """
    flat = experts.long()
    order = torch.argsort(flat, stable=True)
    counts = torch.bincount(flat, minlength=num_experts)
    tile = tile_sizes[-1] if tile_sizes else 1
    padded = (counts + (tile - 1)) // tile * tile
    starts = padded.cumsum(0) - padded
    by_expert = flat[order]
    shift = (starts - (counts.cumsum(0) - counts))[by_expert]
    place = torch.arange(order.shape[0]) + shift
    pieces = _pieces(padded.tolist(), tile_sizes)
    source = flat.new_zeros(sum(size for _, size in pieces))
    source[place] = rows[order]
    result = torch.empty_like(order)
    result[order] = place
    return DispatchPlan(source, result, [e for e, _ in pieces], [size for _, size in pieces])


def _pieces(rows_of_expert: list[int], tile_sizes: Sequence[int] | None) -> list[tuple[int, int]]:
    if tile_sizes is None:
        return [(expert, rows) for expert, rows in enumerate(rows_of_expert) if rows]
    return [(expert, size) for expert, rows in enumerate(rows_of_expert) for size in cut(rows, tile_sizes)]
