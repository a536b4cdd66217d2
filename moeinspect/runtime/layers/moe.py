"""A MoE layer: router, top-k backend, experts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from moeinspect.errors import EngineError
from moeinspect.runtime.capture.gate import bound_config
from moeinspect.runtime.layers.context import ForwardContext
from moeinspect.runtime.layers.linear import Linear
from moeinspect.runtime.layers.placed_experts import CaptureAfterMap, PlacedExperts
from moeinspect.runtime.layers.shared_experts import FusedSharedExperts
from moeinspect.runtime.topk.backend import LayerExperts, MoEBackend, TokenRouter
from moeinspect.runtime.topk.config import TopKConfig
from moeinspect.runtime.topk.registry import LayerBackendFactory


class MoELayer:
    """Routes each row to `topk_config.top_k` experts and sums their outputs.

    A `hash_table` [V, K] int32 says which experts a token has, in place of a ranking. With
    `captures_after_map` the backend's own capture is left out, and placed experts capture the physical slots
    (fault `physical-ids`).
    """

    def __init__(
        self,
        layer_id: int,
        config: TopKConfig,
        router: Linear,
        experts: LayerExperts,
        *,
        hash_table: torch.Tensor | None = None,
        captures_after_map: bool = False,
    ) -> None:
        self.layer_id = layer_id
        self.hash_table = hash_table
        self._config = self._bound_config = config
        self._router = router
        self._experts = experts
        self._captures_after_map = captures_after_map
        self._topk: MoEBackend | TokenRouter | None = None
        self._make_backend: LayerBackendFactory | None = None

    @property
    def routes_by_token(self) -> bool:
        """Whether the layer needs the tokens of the rows that it routes: they go wherever the rows go."""
        return self.hash_table is not None

    @property
    def topk_config(self) -> TopKConfig:
        """The layer's configuration. A new one reaches eager forwards, never a graph captured before."""
        return self._config

    @topk_config.setter
    def topk_config(self, config: TopKConfig) -> None:
        self._config = config
        if self._make_backend is not None:
            self.init_topk_backend(self._make_backend)

    def init_topk_backend(self, make: LayerBackendFactory) -> None:
        """Builds the backend from the present `topk_config`, and again whenever that changes.

        The process's capturer has to be there: see `bound_config`.
        """
        self._make_backend = make
        self._bound_config = config = bound_config(self._config)
        if self._captures_after_map:
            config = replace(config, allow_routed_experts_capture=False)
        self._topk = make(config, self.layer_id)

    def __call__(self, x: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """[padded N, H] to [padded N, H]; padding comes back as zeros."""
        if self._topk is None:
            raise EngineError(f"layer {self.layer_id}: the top-k backend was never initialised")
        logits = context.launch("router_logits", self._router, x)
        return context.launch("experts", partial(self._routed, self._topk), x, logits, context)

    def _routed(
        self,
        backend: MoEBackend | TokenRouter,
        x: torch.Tensor,
        logits: torch.Tensor,
        context: ForwardContext,
    ) -> torch.Tensor:
        n = context.num_rows
        if n == 0:
            return torch.zeros_like(x)
        output = self._run_backend(backend, x[:n], logits[:n], context.input_ids[:n])
        if n == x.shape[0]:
            return output
        return torch.cat([output, output.new_zeros(x.shape[0] - n, output.shape[1])])

    def _run_backend(
        self,
        backend: MoEBackend | TokenRouter,
        x: torch.Tensor,
        logits: torch.Tensor,
        token_ids: torch.Tensor,
    ) -> torch.Tensor:
        """Routes rows [n, H] of `token_ids` [n] by router logits [n, E], and runs their experts: [n, H]."""
        if isinstance(backend, TokenRouter):
            return backend.run(x, logits, token_ids, self._experts_for(logits))
        return backend.run(x, logits, self._experts_for(logits))

    def _experts_for(self, logits: torch.Tensor) -> LayerExperts:
        """The experts for rows with these router logits [n, E]."""
        experts = self._experts
        if self._captures_after_map and isinstance(experts, PlacedExperts):
            ranked = None if self.routes_by_token else logits
            experts = CaptureAfterMap(experts, self._bound_config, self.layer_id, ranked)
        if self._config.num_fused_shared_experts:
            experts = FusedSharedExperts(experts, self._config, logits.shape[1])
        return experts
