"""Where each row of a batch stands in the tiles of the attention, worked out once per forward.

Query rows of one request are cut into tiles; keys are cut into blocks at fixed absolute positions. A unit
is one (block, tile, KV head): one matrix product of fixed shape. Blocks beyond a tile's last position are
not computed; keys that a row must not see score -inf, which adds exact zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from moeinspect.runtime.forward_batch import ForwardBatch

KEY_BLOCK = 64
"""Keys of a block; blocks start at multiples of it."""

_MIN_UNIT_ROWS = 16
_MAX_UNITS = 2048
"""Units computed at once: bounds the scores held in memory to 8 MB per 16 rows of a unit."""


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """Heads of an attention; `group` query heads share one KV head and are folded into a tile's rows."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def query_tile(self) -> int:
        """Query positions of a tile."""
        return max(1, _MIN_UNIT_ROWS // self.group)


@dataclass(frozen=True, slots=True)
class TileGroup:
    """T tiles whose U units are computed together; tiles stand in order of falling length.

    `query_index` [T * Hkv * query_tile]: row * Hkv + head. `key_index` [U * KEY_BLOCK]: slot * Hkv + head,
    the zero slot for keys that no row of the tile sees. `visible` [U, unit rows, KEY_BLOCK] bool.
    `unit_tile` [U]: tile * Hkv + head. `block_units` counts the units of block 0, 1, ...
    """

    query_index: torch.Tensor
    key_index: torch.Tensor
    visible: torch.Tensor
    unit_tile: torch.Tensor
    block_units: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Groups of tiles, and where each row finds its result: `output_index` [N * Hkv] into their queries."""

    groups: tuple[TileGroup, ...]
    output_index: torch.Tensor


def plan_attention(batch: ForwardBatch, heads: HeadLayout) -> AttentionPlan:
    """Cuts a batch into tiles and tiles into groups of bounded memory."""
    rows, tile_of_row, tile_request = _cut_into_tiles(batch, heads.query_tile)
    tile_positions = batch.positions[rows.clamp(min=0)].masked_fill_(rows < 0, 0)
    last = tile_positions.amax(dim=1)
    order = torch.argsort(last, descending=True, stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(order.shape[0])
    blocks = (last[order] // KEY_BLOCK + 1).tolist()
    groups = []
    for start, stop in _bounded(blocks, heads.num_kv_heads):
        chosen = order[start:stop]
        groups.append(
            _plan_group(
                batch.slot_table[tile_request[chosen]],
                rows[chosen].clamp(min=0),
                tile_positions[chosen],
                blocks[start:stop],
                heads,
            )
        )
    kv_heads = torch.arange(heads.num_kv_heads)
    tile, place = rank[tile_of_row // heads.query_tile], tile_of_row % heads.query_tile
    output = (tile[:, None] * heads.num_kv_heads + kv_heads) * heads.query_tile + place[:, None]
    return AttentionPlan(tuple(groups), output.reshape(-1))


def _cut_into_tiles(batch: ForwardBatch, query_tile: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows of each tile [T, query_tile] (-1: none), each row's place among them [N], requests [T]."""
    places: list[int] = []
    requests: list[int] = []
    for request, length in enumerate(batch.extend_lens):
        first = len(requests) * query_tile
        places.extend(range(first, first + length))
        requests.extend([request] * -(-length // query_tile))
    place = torch.tensor(places)
    rows = torch.full((len(requests) * query_tile,), -1)
    rows[place] = torch.arange(len(places))
    return rows.view(-1, query_tile), place, torch.tensor(requests)


def _bounded(blocks: list[int], num_kv_heads: int) -> Iterator[tuple[int, int]]:
    """Cuts tiles with these numbers of blocks into ranges of at most `_MAX_UNITS` units."""
    start = units = 0
    for i, count in enumerate(blocks):
        if i > start and units + count * num_kv_heads > _MAX_UNITS:
            yield start, i
            start, units = i, 0
        units += count * num_kv_heads
    yield start, len(blocks)


def _plan_group(
    slots: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor, blocks: list[int], heads: HeadLayout
) -> TileGroup:
    kv_heads = torch.arange(heads.num_kv_heads)
    tiles_of_block = [sum(count > j for count in blocks) for j in range(blocks[0])]
    block = torch.repeat_interleave(torch.arange(blocks[0]), torch.tensor(tiles_of_block))
    tile = torch.cat([torch.arange(count) for count in tiles_of_block])
    key_positions = block[:, None] * KEY_BLOCK + torch.arange(KEY_BLOCK)
    seen = key_positions <= positions.amax(dim=1)[tile, None]
    # A table narrower than the last block ends inside it; what lies beyond is seen by no row.
    key_slots = slots[tile[:, None], key_positions.clamp(max=slots.shape[1] - 1)] * seen
    visible = key_positions[:, None] <= positions[tile][:, :, None]
    U = tile.shape[0] * heads.num_kv_heads
    return TileGroup(
        query_index=(rows[:, None] * heads.num_kv_heads + kv_heads[:, None]).reshape(-1),
        key_index=(key_slots[:, None] * heads.num_kv_heads + kv_heads[:, None]).reshape(-1),
        visible=visible[:, None, :, None]
        .expand(-1, heads.num_kv_heads, -1, heads.group, -1)
        .reshape(U, -1, KEY_BLOCK),
        unit_tile=(tile[:, None] * heads.num_kv_heads + kv_heads).reshape(-1),
        block_units=tuple(count * heads.num_kv_heads for count in tiles_of_block),
    )
