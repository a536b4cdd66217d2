"""The router of hash-routed layers: a table, not a ranking, says which experts a token has.

Mirrors SGLang's `HashTopK` (`sglang/srt/layers/moe/topk.py`) for DeepSeek-V4, whose first MoE layers route by
`tid2eid[token_id]` and take the weights of these experts from learned scores.
"""

from __future__ import annotations

import torch

from moeinspect.kernels.router_topk.reference import weights_of
from moeinspect.runtime.capture.gate import capture_routed_experts_if_allowed
from moeinspect.runtime.faults import HASH_LAYER_UNCAPTURED, NO_FAULTS, ActiveFaults
from moeinspect.runtime.topk.backend import LayerExperts, TokenRouter, TopKOutput
from moeinspect.runtime.topk.config import TopKConfig
from moeinspect.runtime.topk.fused_moe import fused_moe_routed


class HashTopK(TokenRouter):
    """Looks the experts of each row's token up, and captures them through the gate as any router does.

    Serves hash layers whatever the run's backend, which ranks logits and so is not asked. A `fused` one is
    given the choices in place of logits, and has none of its own to export.
    """

    def __init__(
        self,
        table: torch.Tensor,
        config: TopKConfig,
        layer_id: int,
        *,
        fused: bool = False,
        faults: ActiveFaults = NO_FAULTS,
    ) -> None:
        """`table` [V, K] int32 holds the experts of each token, first to last as they are recorded."""
        super().__init__(config, layer_id)
        self._table = table
        self._fused = fused
        self._faults = faults

    def run(
        self,
        hidden_states: torch.Tensor,
        router_logits: torch.Tensor,
        token_ids: torch.Tensor,
        experts: LayerExperts,
    ) -> torch.Tensor:
        """Selects, then runs the experts."""
        chosen = self.select(router_logits, token_ids)
        run = fused_moe_routed if self._fused else _run_experts
        return run(hidden_states, chosen, experts)

    def select(self, router_logits: torch.Tensor, token_ids: torch.Tensor) -> TopKOutput:
        """The experts of `token_ids` [N], weighted by their scores in `router_logits` [N, E]; captured."""
        ids = self._table[token_ids]
        chosen = TopKOutput(ids, weights_of(router_logits, ids, renormalize=self.config.renormalize))
        if HASH_LAYER_UNCAPTURED not in self._faults:
            capture_routed_experts_if_allowed(
                self.config, self.layer_id, chosen.ids, weights=chosen.weights, router_logits=None
            )
        return chosen


def _run_experts(hidden_states: torch.Tensor, chosen: TopKOutput, experts: LayerExperts) -> torch.Tensor:
    return experts(hidden_states, chosen)
