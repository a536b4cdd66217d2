"""Rotary position embeddings (Su et al. 2021, arXiv 2104.09864) in transformers' half-split layout."""

from __future__ import annotations

import torch

_BLOCK = 512
"""Positions computed by one call, so that an angle's bits depend on its absolute position alone."""


class RotaryEmbedding:
    """Tables of cosines and signed sines, grown on demand in blocks of positions.

    Angles are float32 products of position and inverse frequency; the tables are rounded to `dtype`, as
    transformers does.
    """

    def __init__(self, head_dim: int, theta: float, dtype: torch.dtype) -> None:
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float) / head_dim
        self._inv_freq = 1.0 / (theta**exponents)
        self._dtype = dtype
        self._cos = torch.empty(0, head_dim, dtype=dtype)
        self._sin = torch.empty(0, head_dim, dtype=dtype)

    def tables(self, positions: torch.Tensor, limit: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and signed sines [n, 1, head_dim] of `positions` [n], all below `limit`."""
        while self._cos.shape[0] < limit:
            self._grow()
        return self._cos[positions].unsqueeze(1), self._sin[positions].unsqueeze(1)

    def _grow(self) -> None:
        start = self._cos.shape[0]
        positions = torch.arange(start, start + _BLOCK, dtype=torch.float)
        angles = positions[:, None] * self._inv_freq
        cos, sin = angles.cos(), angles.sin()
        self._cos = torch.cat([self._cos, torch.cat([cos, cos], dim=-1).to(self._dtype)])
        self._sin = torch.cat([self._sin, torch.cat([-sin, sin], dim=-1).to(self._dtype)])


def apply_rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotates x [n, heads, head_dim]; the sign of the rotated half stands in `sin`."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([second, first], dim=-1) * sin
