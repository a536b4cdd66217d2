"""RMSNorm with the rounding points of transformers' `Qwen3MoeRMSNorm`."""

from __future__ import annotations

from functools import cache

import torch

from moeinspect.runtime.layers.tiles import interchangeable_tiles, over_tiles


class RMSNorm:
    """weight * (x / rms(x)): the quotient in float32, rounded to x's dtype before the weight is applied.

    `weight` broadcasts against x [n, ..., width]; `tile` is the number of leading rows of a tile.
    """

    def __init__(self, weight: torch.Tensor, eps: float, tile: int | None) -> None:
        self._weight = weight
        self._eps = eps
        self._tile = tile

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Normalises the last dimension of a contiguous `x` [n, ..., width]."""
        x32 = x.float()
        if self._tile is None:
            squares = _mean_square(x32)
        else:
            sizes = _tiles(tuple(x.shape[1:]), self._tile, torch.get_num_threads())
            squares = over_tiles(_mean_square, x32, sizes)
        # Division and square root are exact by IEEE 754; rsqrt is ATen's 1 / sqrt on every path.
        return (x32 * torch.rsqrt(squares + self._eps)).to(x.dtype) * self._weight


def _mean_square(x32: torch.Tensor) -> torch.Tensor:
    return x32.pow(2).mean(-1, keepdim=True)


@cache
def _tiles(row_shape: tuple[int, ...], tile: int, _threads: int) -> tuple[int, ...]:
    return interchangeable_tiles(_mean_square, row_shape, torch.float32, tile)
