"""Matrix products whose rows do not depend on the number of rows."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from moeinspect.runtime.layers.tiles import over_tiles, product_tiles


class Linear:
    """x W^T + b for `weight` [out, in], `bias` [out] or None; `tile` rows a product, None for all at once.

    Each tile is one product of the same shape, strides and alignment, so a row has the same bits in every
    place of every tile and beside any neighbours.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, tile: int | None) -> None:
        self._weight = weight
        self._weight_t = weight.t()
        self._bias = bias
        self._tile = tile

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[n, in] to [n, out]; with a tile, n is a multiple of it."""
        if self._tile is None:
            return F.linear(x, self._weight, self._bias)
        fan_out, fan_in = self._weight.shape
        sizes = product_tiles(fan_in, fan_out, x.dtype, self._tile)
        out = over_tiles(self._product, x, sizes)
        return out if self._bias is None else out.add_(self._bias)

    def _product(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.mm(rows, self._weight_t)
