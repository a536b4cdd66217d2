"""The backend that bypasses top-k: a fused MoE is given router logits and a configuration instead of choices.

Mirrors SGLang's `BypassedTopKOutput` (`sglang/srt/layers/moe/topk.py`): the layer's top-k computes nothing,
and the fused path builds a configuration of its own from the fields that its kernel knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from moeinspect.runtime.capture.capturer import get_global_experts_capturer
from moeinspect.runtime.capture.gate import capture_routed_experts_if_allowed
from moeinspect.runtime.faults import (
    BYPASS_DROPS_FLAG,
    KERNEL_UNCAPTURED,
    NO_FAULTS,
    UNGATED_BACKEND,
    ActiveFaults,
)
from moeinspect.runtime.topk.backend import LayerExperts, MoEBackend, TopKOutput
from moeinspect.runtime.topk.config import TopKConfig
from moeinspect.runtime.topk.fused_moe import fused_moe


@dataclass(frozen=True, slots=True)
class BypassedTopKOutput:
    """What a fused MoE gets in place of choices: hidden states [N, H], router logits [N, E], the config."""

    hidden_states: torch.Tensor
    router_logits: torch.Tensor
    topk_config: TopKConfig


class BypassMoE(MoEBackend):
    """Leaves top-k and experts to one fused kernel, and captures what the kernel exports."""

    name = "bypass"

    def __init__(self, config: TopKConfig, layer_id: int, faults: ActiveFaults = NO_FAULTS) -> None:
        super().__init__(config, layer_id)
        self._faults = faults

    def run(
        self, hidden_states: torch.Tensor, router_logits: torch.Tensor, experts: LayerExperts
    ) -> torch.Tensor:
        """Bypasses top-k; see `MoEBackend.run`."""
        return self._run_fused(BypassedTopKOutput(hidden_states, router_logits, self.config), experts)

    def _run_fused(self, bypassed: BypassedTopKOutput, experts: LayerExperts) -> torch.Tensor:
        config = self._rebuild(bypassed.topk_config)
        logits = bypassed.router_logits
        chosen = None if KERNEL_UNCAPTURED in self._faults else _room_for_choices(logits, config)
        output = fused_moe(bypassed.hidden_states, logits, experts, config=config, export=chosen)
        if chosen is not None:
            self._capture(config, chosen, logits)
        return output

    def _rebuild(self, config: TopKConfig) -> TopKConfig:
        """The fused path's own config; a field that is not named here falls back to its default."""
        known: dict[str, Any] = {
            "top_k": config.top_k,
            "renormalize": config.renormalize,
            "num_fused_shared_experts": config.num_fused_shared_experts,
        }
        if BYPASS_DROPS_FLAG not in self._faults:
            known["allow_routed_experts_capture"] = config.allow_routed_experts_capture
        return TopKConfig(**known)

    def _capture(self, config: TopKConfig, chosen: TopKOutput, logits: torch.Tensor) -> None:
        if UNGATED_BACKEND in self._faults:
            self._capture_ungated(chosen, logits)
        else:
            capture_routed_experts_if_allowed(
                config, self.layer_id, chosen.ids, weights=chosen.weights, router_logits=logits
            )

    def _capture_ungated(self, chosen: TopKOutput, logits: torch.Tensor) -> None:
        """Straight into the process-wide capturer, past the layer's opt-out (fault `ungated-backend`)."""
        capturer = get_global_experts_capturer()
        if capturer is not None and capturer.has_layer(self.layer_id):
            view = capturer.ids_view(self.layer_id, chosen.ids.shape[0])
            view.copy_(chosen.ids[:, : view.shape[1]])
            capturer.capture_values(self.layer_id, chosen.weights, logits)


def _room_for_choices(router_logits: torch.Tensor, config: TopKConfig) -> TopKOutput:
    shape = (router_logits.shape[0], config.top_k + config.num_fused_shared_experts)
    return TopKOutput(torch.empty(shape, dtype=torch.int32), torch.empty(shape))
