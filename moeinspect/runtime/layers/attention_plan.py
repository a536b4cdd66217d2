"""Where each row of a batch stands in the tiles of the attention, worked out once per forward.

Query rows of one request are cut into tiles; keys are cut into blocks at fixed absolute positions. A unit
is one (block, tile, KV head): one matrix product of fixed shape. Blocks beyond a tile's last position are
not computed; keys that a row must not see score -inf, which adds exact zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby

import torch

from moeinspect.runtime.forward_batch import ForwardBatch
from moeinspect.runtime.layers.tiles import cut, interchangeable_tiles

KEY_BLOCK = 64
"""Keys of a block; blocks start at multiples of it."""

_MIN_UNIT_ROWS = 16
_MAX_SCORES = 2**21
"""Scores computed at once: bounds them to 8 MB."""


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

    def tile_sizes(self) -> tuple[int, ...]:
        """Query positions of a tile, descending; all sizes give a row the same bits."""
        return _tile_sizes(self.group, self.head_dim, torch.get_num_threads())


@dataclass(frozen=True, slots=True)
class Tile:
    """Query rows `[first, first + length)` of one request, of at most `size` positions up to `last`."""

    request: int
    first: int
    length: int
    size: int
    last: int

    @property
    def num_blocks(self) -> int:
        """Key blocks that its rows see."""
        return self.last // KEY_BLOCK + 1


@dataclass(frozen=True, slots=True)
class TileGroup:
    """T tiles of one size whose U units are computed together, in order of falling length.

    `query_index` [T * Hkv * size]: row * Hkv + head. `key_index` [U * KEY_BLOCK]: slot * Hkv + head, the
    zero slot for keys that no row of the tile sees. `hidden` [U, size * group, KEY_BLOCK] bool.
    `unit_tile` [U]: tile * Hkv + head. `block_units` counts the units of block 0, 1, ...
    """

    size: int
    query_index: torch.Tensor
    key_index: torch.Tensor
    hidden: torch.Tensor
    unit_tile: torch.Tensor
    block_units: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Groups of tiles, and where each row finds its result: `output_index` [N * Hkv] into their queries."""

    groups: tuple[TileGroup, ...]
    output_index: torch.Tensor


def plan_attention(batch: ForwardBatch, heads: HeadLayout) -> AttentionPlan:
    """Cuts a batch into tiles and tiles into groups of bounded memory."""
    tiles = sorted(_cut_into_tiles(batch, heads.tile_sizes()), key=lambda tile: (-tile.size, -tile.last))
    kv_heads = torch.arange(heads.num_kv_heads)
    output_index = torch.empty(batch.num_rows, heads.num_kv_heads, dtype=torch.int64)
    groups = []
    offset = 0
    for members in _bounded(tiles, heads):
        rows, real = _rows_of(members)
        groups.append(_plan_group(members, rows, batch, heads))
        T, size = rows.shape
        tile, place = torch.arange(T)[:, None, None], torch.arange(size)[None, :, None]
        index = offset + (tile * heads.num_kv_heads + kv_heads) * size + place
        output_index[rows[real]] = index[real]
        offset += T * heads.num_kv_heads * size
    return AttentionPlan(tuple(groups), output_index.view(-1))


def _cut_into_tiles(batch: ForwardBatch, sizes: Sequence[int]) -> Iterator[Tile]:
    positions = batch.positions.tolist()
    first = 0
    for request, length in enumerate(batch.extend_lens):
        end = first + length
        for size in cut(length + -length % sizes[-1], sizes):
            stop = min(first + size, end)
            yield Tile(request, first, stop - first, size, positions[stop - 1])
            first = stop


def _bounded(tiles: Sequence[Tile], heads: HeadLayout) -> Iterator[list[Tile]]:
    """Cuts tiles, sorted by size, into groups of one size and at most `_MAX_SCORES` scores."""
    for size, same in groupby(tiles, key=lambda tile: tile.size):
        per_block = heads.num_heads * size * KEY_BLOCK
        members: list[Tile] = []
        scores = 0
        for tile in same:
            if members and scores + tile.num_blocks * per_block > _MAX_SCORES:
                yield members
                members, scores = [], 0
            members.append(tile)
            scores += tile.num_blocks * per_block
        yield members


def _rows_of(tiles: Sequence[Tile]) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of each tile [T, size], the last one repeated where it is short, and which are real."""
    first = torch.tensor([tile.first for tile in tiles])[:, None]
    length = torch.tensor([tile.length for tile in tiles])[:, None]
    place = torch.arange(tiles[0].size)
    return first + torch.minimum(place, length - 1), place < length


def _plan_group(
    tiles: Sequence[Tile], rows: torch.Tensor, batch: ForwardBatch, heads: HeadLayout
) -> TileGroup:
    kv_heads = torch.arange(heads.num_kv_heads)
    positions = batch.positions[rows]
    slots = batch.slot_table[torch.tensor([tile.request for tile in tiles])]
    last = torch.tensor([tile.last for tile in tiles])
    tiles_of_block = [sum(t.num_blocks > j for t in tiles) for j in range(tiles[0].num_blocks)]
    block = torch.repeat_interleave(torch.arange(len(tiles_of_block)), torch.tensor(tiles_of_block))
    tile = torch.cat([torch.arange(count) for count in tiles_of_block])
    key_positions = block[:, None] * KEY_BLOCK + torch.arange(KEY_BLOCK)
    # A table narrower than the last block ends inside it; what lies beyond is seen by no row.
    key_slots = slots[tile[:, None], key_positions.clamp(max=slots.shape[1] - 1)]
    key_slots = key_slots * (key_positions <= last[tile, None])
    hidden = key_positions[:, None] > positions[tile][:, :, None]
    U = tile.shape[0] * heads.num_kv_heads
    return TileGroup(
        size=tiles[0].size,
        query_index=(rows[:, None] * heads.num_kv_heads + kv_heads[:, None]).reshape(-1),
        key_index=(key_slots[:, None] * heads.num_kv_heads + kv_heads[:, None]).reshape(-1),
        hidden=hidden[:, None, :, None]
        .expand(-1, heads.num_kv_heads, -1, heads.group, -1)
        .reshape(U, -1, KEY_BLOCK),
        unit_tile=(tile[:, None] * heads.num_kv_heads + kv_heads).reshape(-1),
        block_units=tuple(count * heads.num_kv_heads for count in tiles_of_block),
    )


@cache
def _tile_sizes(group: int, head_dim: int, _threads: int) -> tuple[int, ...]:
    base = max(1, _MIN_UNIT_ROWS // group)
    generator = torch.Generator().manual_seed(2)
    keys = torch.randn(1, KEY_BLOCK, head_dim, generator=generator)
    values = torch.randn(1, KEY_BLOCK, head_dim, generator=generator)

    def scores(queries: torch.Tensor) -> torch.Tensor:
        return torch.bmm(queries.view(1, -1, head_dim), keys.transpose(1, 2))[0]

    def weighted(weights: torch.Tensor) -> torch.Tensor:
        return torch.bmm(weights.view(1, -1, KEY_BLOCK), values)[0]

    by_scores = interchangeable_tiles(scores, (head_dim,), torch.float32, base * group)
    by_values = interchangeable_tiles(weighted, (KEY_BLOCK,), torch.float32, base * group)
    return tuple(rows // group for rows in by_scores if rows in by_values)
