"""Fixed row tiles: the way in which one row's bits are kept free of its neighbours.

BLAS and vectorised kernels pick another instruction path when the number of rows changes, and the path
changes the rounding. So every function whose rounding is not fixed by IEEE 754 (products, sums, exp, silu,
rsqrt) only ever sees one shape: a tile of a fixed number of rows, contiguous, aligned to 64 bytes, and
with a multiple of 64 elements so that no element falls into a vector loop's scalar tail. Single additions,
multiplications, divisions, conversions, comparisons and copies are exact by IEEE 754 and run on any shape.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

ROW_TILE = 16
"""Rows of a tile in the layers that every token passes."""

EXPERT_TILE = 8
"""Rows of a tile in an expert, which only sees the tokens that chose it."""

_PIECE = 16384
"""Elements of one vectorised call: below the 32768 from which on ATen splits a call between threads."""


def tile_rows(base: int, *widths: int) -> int:
    """The smallest multiple of `base` rows that makes a tile of each width a multiple of 64 elements."""
    rows = base
    while any(rows * width % 64 for width in widths):
        rows += base
    return rows


def pad_rows(x: torch.Tensor, tile: int) -> torch.Tensor:
    """`x` [n, ...] with zero rows added up to a multiple of `tile` rows."""
    missing = -x.shape[0] % tile
    if missing == 0:
        return x
    return F.pad(x, (0, 0) * (x.dim() - 1) + (0, missing))


def over_tiles(
    function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, tile: int | None
) -> torch.Tensor:
    """Applies a row-wise function to each tile of `x` [n * tile, ...]; to all rows if `tile` is None."""
    if tile is None or x.shape[0] == tile:
        return function(x)
    return torch.cat([function(rows) for rows in torch.split(x, tile)])


def elementwise(
    function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, tile: int | None
) -> torch.Tensor:
    """Applies an elementwise function to a contiguous tensor of whole tiles, in pieces that never split."""
    if tile is None or x.numel() <= _PIECE:
        return function(x)
    pieces = torch.split(x.view(-1), _PIECE)
    return torch.cat([function(piece) for piece in pieces]).view(x.shape)
