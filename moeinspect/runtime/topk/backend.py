"""The interface that every backend of a MoE layer's routing implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch

from moeinspect.runtime.topk.config import TopKConfig


@dataclass(frozen=True, slots=True)
class TopKOutput:
    """Chosen experts of N rows, best first: ids [N, K] int32, routing weights [N, K] float32."""

    ids: torch.Tensor
    weights: torch.Tensor


class LayerExperts(Protocol):
    """The experts of one layer."""

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
