"""The top-k configuration that every MoE layer carries."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TopKConfig:
    """How a layer's router selects experts.

    `allow_routed_experts_capture` is the per-layer opt-out (SGLang PR 26980): False keeps the layer's
    choices out of the process-wide capturer whatever the backend. It stands on the config, so that a path
    that rebuilds the config has to carry it on.

    `num_fused_shared_experts` shared experts run as columns behind the K that the router chose: every row
    has them, under the ids from E on, with weight 1. The gate strips these columns.
    """

    top_k: int
    renormalize: bool = True
    allow_routed_experts_capture: bool = True
    num_fused_shared_experts: int = 0
