"""A MoE layer: router, top-k backend, experts."""

from __future__ import annotations

from functools import partial

import torch

from moeinspect.errors import EngineError
from moeinspect.runtime.layers.context import ForwardContext
from moeinspect.runtime.layers.experts import Experts
from moeinspect.runtime.layers.linear import Linear
from moeinspect.runtime.topk.backend import MoEBackend
from moeinspect.runtime.topk.config import TopKConfig
from moeinspect.runtime.topk.registry import BackendFactory


class MoELayer:
    """Routes each row to `topk_config.top_k` experts and sums their outputs."""

    def __init__(self, layer_id: int, config: TopKConfig, router: Linear, experts: Experts) -> None:
        self.layer_id = layer_id
        self._config = config
        self._router = router
        self._experts = experts
        self._topk: MoEBackend | None = None
        self._make_backend: BackendFactory | None = None

    @property
    def topk_config(self) -> TopKConfig:
        """The layer's configuration. A new one reaches eager forwards, never a graph captured before."""
        return self._config

    @topk_config.setter
    def topk_config(self, config: TopKConfig) -> None:
        self._config = config
        if self._make_backend is not None:
            self.init_topk_backend(self._make_backend)

    def init_topk_backend(self, make: BackendFactory) -> None:
        """Builds the backend from the present `topk_config`, and again whenever that changes."""
        self._make_backend = make
        self._topk = make(self._config, self.layer_id)

    def __call__(self, x: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """[padded N, H] to [padded N, H]; padding comes back as zeros."""
        if self._topk is None:
            raise EngineError(f"layer {self.layer_id}: the top-k backend was never initialised")
        logits = context.launch("router_logits", self._router, x)
        routed = partial(_routed, self._topk, self._experts)
        return context.launch("experts", routed, x, logits, context)


def _routed(
    backend: MoEBackend, experts: Experts, x: torch.Tensor, logits: torch.Tensor, context: ForwardContext
) -> torch.Tensor:
    n = context.num_rows
    if n == 0:
        return torch.zeros_like(x)
    output = backend.run(x[:n], logits[:n], experts)
    if n == x.shape[0]:
        return output
    return torch.cat([output, output.new_zeros(x.shape[0] - n, output.shape[1])])
