"""The top-k configuration that every MoE layer carries."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TopKConfig:
    """How a layer's router selects experts.

    `allow_routed_experts_capture` is the per-layer opt-out (SGLang PR 26980): False keeps the layer's
    choices out of the process-wide capturer whatever the backend. It stands on the config, so that a path
    that rebuilds the config has to carry it on.
    """

    top_k: int
    renormalize: bool = True
    allow_routed_experts_capture: bool = True
