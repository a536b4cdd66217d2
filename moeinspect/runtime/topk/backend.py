"""The interface that every top-k backend implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from moeinspect.runtime.topk.config import TopKConfig


@dataclass(frozen=True, slots=True)
class TopKOutput:
    """Chosen experts of N rows, best first: ids [N, K] int32, routing weights [N, K] float32."""

    ids: torch.Tensor
    weights: torch.Tensor


class TopKBackend(ABC):
    """Turns one layer's router logits into experts and captures them through the gate.

    A backend takes its config when it is initialised; a later change of the layer's config does not
    reach it, as with a captured graph. `select` is called with real rows only, never padding.
    """

    name: str

    def __init__(self, config: TopKConfig, layer_id: int) -> None:
        self.config = config
        self.layer_id = layer_id

    @abstractmethod
    def select(self, router_logits: torch.Tensor) -> TopKOutput:
        """Chooses `config.top_k` experts for each row of `router_logits` [N, E]."""
