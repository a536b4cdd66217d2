"""A MoE layer: router, top-k backend, experts."""

from __future__ import annotations

import torch

from moeinspect.errors import EngineError
from moeinspect.runtime.layers.experts import Experts
from moeinspect.runtime.layers.linear import Linear
from moeinspect.runtime.topk.backend import TopKBackend
from moeinspect.runtime.topk.config import TopKConfig
from moeinspect.runtime.topk.registry import create_backend


class MoELayer:
    """Routes each row to `topk_config.top_k` experts and sums their outputs.

    `topk_config` may be replaced until `init_topk_backend` builds the backend from it; later changes do not
    reach the backend.
    """

    def __init__(self, layer_id: int, config: TopKConfig, router: Linear, experts: Experts) -> None:
        self.layer_id = layer_id
        self.topk_config = config
        self._router = router
        self._experts = experts
        self._topk: TopKBackend | None = None

    def init_topk_backend(self, name: str) -> None:
        """Builds the backend `name` from the present `topk_config`."""
        self._topk = create_backend(name, self.topk_config, self.layer_id)

    def __call__(self, x: torch.Tensor, num_rows: int) -> torch.Tensor:
        """[n, H] to [n, H]; the rows from `num_rows` on are padding and come back as zeros."""
        if self._topk is None:
            raise EngineError(f"layer {self.layer_id}: the top-k backend was never initialised")
        logits = self._router(x)[:num_rows]
        output = self._experts(x[:num_rows], self._topk.select(logits))
        if num_rows == x.shape[0]:
            return output
        return torch.cat([output, output.new_zeros(x.shape[0] - num_rows, output.shape[1])])
