"""Fixed row tiles: the way in which one row's bits are kept free of its neighbours.

BLAS and vectorised kernels pick another instruction path when the number of rows changes, and the path
changes the rounding. So every function whose rounding is not fixed by IEEE 754 (products, sums, exp, silu,
rsqrt) sees tiles of one number of rows only: contiguous, aligned to 64 bytes, and with a multiple of 64
elements so that no element falls into a vector loop's scalar tail. Single additions, multiplications,
divisions, conversions, comparisons and copies are exact by IEEE 754 and run on any shape.

Several tiles may run as one larger tile where a probe in this process has found that to make no difference
in any bit. The order of operations inside these kernels depends on shapes, never on values, so random
values show it. The same probe refuses a machine on which a row's place within a tile matters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
import torch.nn.functional as F

from moeinspect.errors import EngineError

BASE_TILE = 4
"""Rows of the smallest tile. Fewer would take BLAS's matrix-vector path, whose bits are others still."""

_LARGEST_TILE = 128
_PIECE = 16384
"""Elements of one vectorised call: below the 32768 from which on ATen splits a call between threads."""

_LARGEST_PROBED = 32 * 2**20
"""Elements of a weight matrix beyond which no probe runs: few rows meet a large output head."""

RowFunction = Callable[[torch.Tensor], torch.Tensor]


def tile_rows(*widths: int) -> int:
    """Rows of the smallest tile in which each width makes a multiple of 64 elements."""
    rows = BASE_TILE
    while any(rows * width % 64 for width in widths):
        rows += BASE_TILE
    return rows


def pad_rows(x: torch.Tensor, tile: int) -> torch.Tensor:
    """`x` [n, ...] with zero rows added up to a multiple of `tile` rows."""
    return pad_to(x, x.shape[0] + -x.shape[0] % tile)


def pad_to(x: torch.Tensor, num_rows: int) -> torch.Tensor:
    """`x` [n, ...] with zero rows added up to `num_rows`."""
    missing = num_rows - x.shape[0]
    return x if missing == 0 else F.pad(x, (0, 0) * (x.dim() - 1) + (0, missing))


def over_tiles(function: RowFunction, x: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """Applies a row-wise function to `x` [n, ...] tile by tile, the largest of `sizes` first.

    n is a multiple of the smallest of the descending `sizes`.
    """
    cuts = cut(x.shape[0], sizes)
    if len(cuts) == 1:
        return function(x)
    return torch.cat([function(rows) for rows in torch.split(x, cuts)])


def cut(num_rows: int, sizes: Sequence[int]) -> list[int]:
    """Cuts rows into tiles of the descending `sizes`."""
    cuts: list[int] = []
    for size in sizes:
        count, num_rows = divmod(num_rows, size)
        cuts += [size] * count
    return cuts


def elementwise_(function_: RowFunction, x: torch.Tensor) -> torch.Tensor:
    """Applies an in-place elementwise function to a contiguous tensor of whole tiles, in unsplit pieces."""
    for piece in torch.split(x.view(-1), _PIECE):
        function_(piece)
    return x


def product_tiles(fan_in: int, fan_out: int, dtype: torch.dtype, tile: int) -> tuple[int, ...]:
    """Tile sizes, descending to `tile`, in which a product with a [fan_out, fan_in] weight has equal bits.

    Holds for the calling thread's number of threads.
    """
    return _product_tiles(fan_in, fan_out, dtype, tile, torch.get_num_threads())


@cache
def _product_tiles(
    fan_in: int, fan_out: int, dtype: torch.dtype, tile: int, _threads: int
) -> tuple[int, ...]:
    if fan_in * fan_out > _LARGEST_PROBED:
        return (tile,)
    weight_t = _random((fan_out, fan_in), dtype, seed=1).t()
    return interchangeable_tiles(lambda rows: torch.mm(rows, weight_t), (fan_in,), dtype, tile)


def interchangeable_tiles(
    function: RowFunction, row_shape: tuple[int, ...], dtype: torch.dtype, tile: int
) -> tuple[int, ...]:
    """Tile sizes, descending to `tile`, that give every row of `function` the bits that `tile` gives.

    Raises:
        EngineError: on this machine a row's bits depend on its place in a tile of `tile` rows.
    """
    candidates = [tile]
    while candidates[-1] * 2 <= _LARGEST_TILE:
        candidates.append(candidates[-1] * 2)
    x = _random((candidates[-1], *row_shape), dtype, seed=0)
    expected = _by_tiles(function, x, tile)
    if not torch.equal(_by_tiles(function, x.roll(1, 0), tile).roll(-1, 0), expected):
        raise EngineError(
            f"this machine rounds a row by its place among {tile} (rows of {list(row_shape)}, {dtype})",
            "bits cannot be kept here; use --no-deterministic",
        )
    equal = [size for size in candidates[1:] if torch.equal(function(x[:size]), expected[:size])]
    return (*reversed(equal), tile)


def _by_tiles(function: RowFunction, x: torch.Tensor, tile: int) -> torch.Tensor:
    return torch.cat([function(rows) for rows in torch.split(x, tile)])


def _random(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
