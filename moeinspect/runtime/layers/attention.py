"""Attention over paged keys and values whose bits do not depend on batch, chunks or neighbours."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from moeinspect.runtime.forward_batch import ForwardBatch
from moeinspect.runtime.layers.attention_plan import KEY_BLOCK, AttentionPlan, HeadLayout, TileGroup
from moeinspect.runtime.layers.tiles import elementwise_


def tiled_attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, plan: AttentionPlan, heads: HeadLayout
) -> torch.Tensor:
    """Softmax attention of `queries` [N, Hq, D] over `keys` and `values` [slots, Hkv, D]; [N, Hq * D].

    Computed in float32. A row's scores come from key blocks at fixed positions; its maximum is exact, the
    sums run block by block in order of position, so that blocks and keys it does not see change nothing.
    """
    N, D = queries.shape[0], heads.head_dim
    folded = queries.reshape(-1, heads.group * D)
    keys, values = keys.reshape(-1, D), values.reshape(-1, D)
    outputs = [_attend_group(folded, keys, values, group, heads) for group in plan.groups]
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    rows = output.index_select(0, plan.output_index)
    return rows.view(N, -1).to(queries.dtype)


def _attend_group(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, group: TileGroup, heads: HeadLayout
) -> torch.Tensor:
    """Results [T * Hkv * size, group * D] float32 of one group's tiles."""
    D = heads.head_dim
    unit_rows = group.size * heads.group
    tiles = queries.index_select(0, group.query_index).view(-1, unit_rows, D).float() * D**-0.5
    unit_keys = keys.index_select(0, group.key_index).view(-1, KEY_BLOCK, D).float()
    unit_values = values.index_select(0, group.key_index).view(-1, KEY_BLOCK, D).float()
    scores = torch.bmm(tiles.index_select(0, group.unit_tile), unit_keys.transpose(1, 2))
    scores.masked_fill_(group.hidden, -torch.inf)
    largest = _over_blocks(scores.amax(dim=-1), group.block_units, torch.maximum)
    scores -= largest.index_select(0, group.unit_tile).unsqueeze(-1)
    weights = elementwise_(torch.exp_, scores)
    weighted = _over_blocks(torch.bmm(weights, unit_values), group.block_units, torch.add)
    total = _over_blocks(_halving_sum(weights), group.block_units, torch.add)
    return (weighted / total.unsqueeze(-1)).view(-1, heads.group * D)


def _over_blocks(
    units: torch.Tensor, block_units: tuple[int, ...], combine: Callable[..., torch.Tensor]
) -> torch.Tensor:
    """Combines the units [U, ...] of each tile in order of position: [T * Hkv, ...]."""
    first = block_units[0]
    result = units[:first] + 0.0  # a copy in which -0 is 0, so that adding an unseen block changes nothing
    start = first
    for count in block_units[1:]:
        combine(result[:count], units[start : start + count], out=result[:count])
        start += count
    return result


def _halving_sum(x: torch.Tensor) -> torch.Tensor:
    """Sum over the last dimension, a power of two, in one fixed order of exact additions."""
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        x = x[..., :half] + x[..., half:]
    return x.squeeze(-1)


def plain_attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, batch: ForwardBatch, heads: HeadLayout
) -> torch.Tensor:
    """The ordinary fast way: one fused call per request. Same shapes as `tiled_attention`."""
    outputs = []
    start = 0
    for request, length in enumerate(batch.extend_lens):
        rows = slice(start, start + length)
        positions = batch.positions[rows]
        context = int(positions[-1]) + 1
        slots = batch.slot_table[request, :context]
        mask = torch.arange(context) <= positions[:, None]
        output = F.scaled_dot_product_attention(
            queries[rows].transpose(0, 1)[None],
            keys[slots].transpose(0, 1)[None],
            values[slots].transpose(0, 1)[None],
            attn_mask=mask,
            enable_gqa=True,
        )
        outputs.append(output[0].transpose(0, 1).reshape(length, -1))
        start += length
    return torch.cat(outputs)
