"""A fused MoE: top-k, renormalisation and experts behind one call, as FlashInfer's `trtllm` kernels.

Its choices stay inside unless the caller hands in where to put them.
"""

from __future__ import annotations

import torch

from moeinspect.kernels.router_topk.reference import router_topk
from moeinspect.runtime.topk.backend import LayerExperts, TopKOutput, with_shared_experts
from moeinspect.runtime.topk.config import TopKConfig


def fused_moe(
    hidden_states: torch.Tensor,
    router_logits: torch.Tensor,
    experts: LayerExperts,
    *,
    config: TopKConfig,
    export: TopKOutput | None = None,
) -> torch.Tensor:
    """Output [N, H] of a MoE layer for `hidden_states` [N, H] and `router_logits` [N, E].

    `export`, if given, receives the chosen ids [N, K] int32 and weights [N, K] float32, and the columns of
    fused shared experts behind them.
    """
    ids, weights = router_topk(router_logits, config.top_k, renormalize=config.renormalize)
    chosen = with_shared_experts(ids, weights, config, router_logits.shape[1])
    if export is not None:
        export.ids.copy_(chosen.ids)
        export.weights.copy_(chosen.weights)
    return experts(hidden_states, chosen)


def fused_moe_routed(hidden_states: torch.Tensor, chosen: TopKOutput, experts: LayerExperts) -> torch.Tensor:
    """The same kernel behind a router that has chosen already, as FlashInfer's `..._routed_moe`."""
    return experts(hidden_states, chosen)
