"""The interface that every backend of a MoE layer's routing implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch

from moeinspect.runtime.topk.config import TopKConfig


@dataclass(frozen=True, slots=True)
class TopKOutput:
    """Chosen experts of N rows, best first: ids [N, K] int32, routing weights [N, K] float32.

    With fused shared experts their columns stand behind the K that were chosen.
    """

    ids: torch.Tensor
    weights: torch.Tensor


def with_shared_experts(
    ids: torch.Tensor, weights: torch.Tensor, config: TopKConfig, num_experts: int
) -> TopKOutput:
    """The choices [N, K] of a router among `num_experts`, with the columns of the config's shared experts.

    Mirrors `num_fused_shared_experts` of SGLang's `select_experts` (`sglang/srt/layers/moe/topk.py`, 0.5.23).
    """
    num_shared = config.num_fused_shared_experts
    if num_shared == 0:
        return TopKOutput(ids, weights)
    shared = torch.arange(num_experts, num_experts + num_shared, dtype=ids.dtype).expand(len(ids), -1)
    ones = weights.new_ones(len(ids), num_shared)
    return TopKOutput(torch.cat([ids, shared], dim=1), torch.cat([weights, ones], dim=1))


class LayerExperts(Protocol):
    """The experts of one layer; fused shared ones stand behind the E that a router chooses from."""

    @property
    def gate_up(self) -> torch.Tensor:
        """Weights [E, 2 I, H]: gate, then up."""

    @property
    def down(self) -> torch.Tensor:
        """Weights [E, H, I]."""

    def __call__(self, x: torch.Tensor, chosen: TopKOutput) -> torch.Tensor:
        """Sum over each row's experts, weighted, in router order: x [N, H] to [N, H]."""


class MoEBackend(ABC):
    """Computes a MoE layer from its router logits on, and captures what it chose through the gate.

    A backend takes its config when it is initialised; it is made again when the layer's config changes,
    but a graph keeps the one it was captured with. `run` is called with real rows only, never padding.
    """

    name: ClassVar[str]

    def __init__(self, config: TopKConfig, layer_id: int) -> None:
        self.config = config
        self.layer_id = layer_id

    @abstractmethod
    def run(
        self, hidden_states: torch.Tensor, router_logits: torch.Tensor, experts: LayerExperts
    ) -> torch.Tensor:
        """The layer's output [N, H] for `hidden_states` [N, H] and `router_logits` [N, E], N > 0."""


class TokenRouter(ABC):
    """Computes a MoE layer that is routed by token ids, and captures what it chose through the gate.

    As `MoEBackend` otherwise; the router logits give the chosen experts their weights and choose nothing.
    """

    def __init__(self, config: TopKConfig, layer_id: int) -> None:
        self.config = config
        self.layer_id = layer_id

    @abstractmethod
    def run(
        self,
        hidden_states: torch.Tensor,
        router_logits: torch.Tensor,
        token_ids: torch.Tensor,
        experts: LayerExperts,
    ) -> torch.Tensor:
        """The layer's output [N, H] for `hidden_states` [N, H] of `token_ids` [N], N > 0."""


class TopKBackend(MoEBackend):
    """A backend that selects experts and leaves their work to the layer's own."""

    def run(
        self, hidden_states: torch.Tensor, router_logits: torch.Tensor, experts: LayerExperts
    ) -> torch.Tensor:
        """Selects, then runs the experts."""
        return experts(hidden_states, self.select(router_logits))

    @abstractmethod
    def select(self, router_logits: torch.Tensor) -> TopKOutput:
        """Chooses `config.top_k` experts for each row of `router_logits` [N, E], and captures them."""
