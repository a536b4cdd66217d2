"""The dense SwiGLU block."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from moeinspect.runtime.layers.linear import Linear
from moeinspect.runtime.layers.tiles import elementwise_


class DenseMLP:
    """down(silu(gate(x)) * up(x)); `gate_up` [2 I, H] holds gate, then up; `down` [H, I]."""

    def __init__(self, gate_up: torch.Tensor, down: torch.Tensor, tile: int | None) -> None:
        self._gate_up = Linear(gate_up, None, tile)
        self._down = Linear(down, None, tile)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[n, H] to [n, H]; with a tile, n is a multiple of it."""
        return self._down(swiglu(self._gate_up(x)))


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of `gate_up` [..., 2 I]; rounds silu to the dtype first, as transformers does."""
    gate, up = gate_up.chunk(2, dim=-1)
    # A strided gate would take silu's scalar path, whose bits differ.
    gate = gate.clone(memory_format=torch.contiguous_format)
    return elementwise_(_silu_, gate).mul_(up)


def _silu_(x: torch.Tensor) -> torch.Tensor:
    return F.silu(x, inplace=True)
