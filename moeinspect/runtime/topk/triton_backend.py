"""The top-k backend that runs the Triton kernel, which writes the captured ids itself.

On the CPU the kernel runs in Triton's interpreter: right, but milliseconds a row.
"""

from __future__ import annotations

import torch

from moeinspect.kernels.interpreter import prepare_triton
from moeinspect.kernels.router_topk import router_topk
from moeinspect.runtime.capture.gate import (
    capture_routed_experts_if_allowed,
    capture_routing_values_if_allowed,
    captured_ids_view,
)
from moeinspect.runtime.topk.backend import TopKBackend, TopKOutput, with_shared_experts
from moeinspect.runtime.topk.config import TopKConfig


class TritonTopK(TopKBackend):
    """Selects, renormalises and captures in one kernel.

    Raises:
        EngineError: Triton is not installed, or its interpreter cannot be switched on any more.
    """

    name = "triton"

    def __init__(self, config: TopKConfig, layer_id: int) -> None:
        super().__init__(config, layer_id)
        prepare_triton(torch.device("cpu"))  # where the runtime's tensors are; trouble shows before row one

    def select(self, router_logits: torch.Tensor) -> TopKOutput:
        """Chooses the experts of `router_logits` [N, E]; the kernel captures the ids through the gate.

        It knows nothing of fused shared experts: with those all that was chosen is captured afterwards.
        """
        config, layer_id = self.config, self.layer_id
        is_fused = config.num_fused_shared_experts > 0
        view = None if is_fused else captured_ids_view(config, layer_id, router_logits.shape[0])
        ids, weights = router_topk(router_logits, config.top_k, renormalize=config.renormalize, capture=view)
        chosen = with_shared_experts(ids, weights, config, router_logits.shape[1])
        if is_fused:
            capture_routed_experts_if_allowed(
                config, layer_id, chosen.ids, weights=chosen.weights, router_logits=router_logits
            )
        else:
            capture_routing_values_if_allowed(config, layer_id, weights=weights, router_logits=router_logits)
        return chosen
