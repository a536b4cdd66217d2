"""Matrix products whose rows do not depend on the number of rows."""

from __future__ import annotations

import torch
import torch.nn.functional as F


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
        out = x.new_empty(x.shape[0], self._weight_t.shape[1])
        if x.shape[0] == self._tile:
            torch.mm(x, self._weight_t, out=out)
        else:
            for rows, out_rows in zip(torch.split(x, self._tile), torch.split(out, self._tile), strict=True):
                torch.mm(rows, self._weight_t, out=out_rows)
        return out if self._bias is None else out.add_(self._bias)
