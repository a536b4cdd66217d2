"""Shared experts: every row has them. They run beside the routed ones, or fused with them as columns."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from moeinspect.runtime.layers.experts import Experts
from moeinspect.runtime.topk.backend import LayerExperts, TopKOutput, with_shared_experts
from moeinspect.runtime.topk.config import TopKConfig


class SharedExpert:
    """The shared expert of a layer by itself: `gate_up` [1, 2 I, H] holds gate, then up; `down` [1, H, I].

    Its tiles are those of routed experts of its size, so that it has the same bits as when it is fused.
    """

    def __init__(self, gate_up: torch.Tensor, down: torch.Tensor, *, tiled: bool) -> None:
        self._experts = Experts(gate_up, down, tiled=tiled)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[n, H] to [n, H]."""
        only = x.new_zeros(x.shape[0], 1, dtype=torch.int32)
        return self._experts(x, TopKOutput(only, torch.ones(x.shape[0], 1)))


@dataclass(frozen=True, slots=True)
class FusedSharedExperts:
    """Gives `experts` the columns of shared ones where a backend knows nothing of them.

    Mirrors SGLang's fusion of shared experts for DeepSeek models: one product more a row and no launch more.
    `num_experts` are those that a router chooses from.
    """

    experts: LayerExperts
    config: TopKConfig
    num_experts: int

    @property
    def gate_up(self) -> torch.Tensor:
        """Weights [E + shared, 2 I, H]: gate, then up."""
        return self.experts.gate_up

    @property
    def down(self) -> torch.Tensor:
        """Weights [E + shared, H, I]."""
        return self.experts.down

    def __call__(self, x: torch.Tensor, chosen: TopKOutput) -> torch.Tensor:
        """Sum over each row's experts, weighted, in router order, and the shared ones: x [N, H] to [N, H]."""
        if chosen.ids.shape[1] <= self.config.top_k:
            chosen = with_shared_experts(chosen.ids, chosen.weights, self.config, self.num_experts)
        return self.experts(x, chosen)
