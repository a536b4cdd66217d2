"""The top-k backend in plain torch."""

from __future__ import annotations

import torch

from moeinspect.kernels.router_topk.reference import router_topk
from moeinspect.runtime.capture.gate import capture_routed_experts_if_allowed
from moeinspect.runtime.topk.backend import TopKBackend, TopKOutput, with_shared_experts


class TorchTopK(TopKBackend):
    """Selects with the torch twin of the router kernel, then captures through the gate."""

    name = "torch"

    def select(self, router_logits: torch.Tensor) -> TopKOutput:
        """Chooses the experts of `router_logits` [N, E] and captures them if the layer allows it."""
        ids, weights = router_topk(router_logits, self.config.top_k, renormalize=self.config.renormalize)
        chosen = with_shared_experts(ids, weights, self.config, router_logits.shape[1])
        capture_routed_experts_if_allowed(
            self.config, self.layer_id, chosen.ids, weights=chosen.weights, router_logits=router_logits
        )
        return chosen
