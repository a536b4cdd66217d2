"""RMSNorm with the rounding points of transformers' `Qwen3MoeRMSNorm`."""

from __future__ import annotations

import torch

from moeinspect.runtime.layers.tiles import over_tiles


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
        scale = over_tiles(self._inverse_rms, x32, self._tile)
        return (x32 * scale).to(x.dtype) * self._weight

    def _inverse_rms(self, x32: torch.Tensor) -> torch.Tensor:
        return torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + self._eps)
