"""Experts behind a placement: choices are mapped from experts to physical slots, and weights move."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from moeinspect.runtime.capture.gate import capture_routed_experts_if_allowed
from moeinspect.runtime.layers.experts import Experts
from moeinspect.runtime.layers.placement import LayerPlacement
from moeinspect.runtime.layers.spread_experts import SpreadExperts
from moeinspect.runtime.topk.backend import TopKOutput
from moeinspect.runtime.topk.config import TopKConfig


class PlacedExperts:
    """The experts of one layer as backends see them; `slots` are the physical ones that do the work.

    The map comes after the backend has captured what it chose, as `topk_ids_logical_to_physical` follows the
    capture in SGLang's `_post_process_topk_ids`: no backend knows of it.
    """

    def __init__(self, slots: Experts | SpreadExperts, placement: LayerPlacement) -> None:
        """`slots` hold their experts by the first placement."""
        self.placement = placement
        self._slots = slots
        slots.on_dispatch = placement.count

    @property
    def gate_up(self) -> torch.Tensor:
        """Copies of the weights by expert, [E, 2 I, H]: gate, then up."""
        return self._slots.gate_up[self._first_slots()]

    @property
    def down(self) -> torch.Tensor:
        """Copies of the weights by expert, [E, H, I]."""
        return self._slots.down[self._first_slots()]

    def __call__(self, x: torch.Tensor, chosen: TopKOutput) -> torch.Tensor:
        """Sum over each row's experts, weighted, in router order: x [N, H] to [N, H]."""
        return self.run(x, self.place(chosen))

    def place(self, chosen: TopKOutput) -> TopKOutput:
        """`chosen` with physical slots in place of experts."""
        return TopKOutput(self.placement.physical(chosen.ids), chosen.weights)

    def run(self, x: torch.Tensor, placed: TopKOutput) -> torch.Tensor:
        """As a call, for choices that were placed."""
        return self._slots(x, placed)

    def rebalance(self) -> None:
        """Places the experts by their load and moves their weights."""
        sources = self.placement.rebalance()
        if sources is not None:
            self._slots.move(sources)

    def _first_slots(self) -> torch.Tensor:
        return self.placement.physical(torch.arange(self.placement.load.shape[0]))


@dataclass(frozen=True, slots=True)
class CaptureAfterMap:
    """Experts whose choices are captured once they were mapped to physical slots (fault `physical-ids`)."""

    experts: PlacedExperts
    config: TopKConfig
    layer_id: int
    router_logits: torch.Tensor | None

    @property
    def gate_up(self) -> torch.Tensor:
        """See `PlacedExperts`."""
        return self.experts.gate_up

    @property
    def down(self) -> torch.Tensor:
        """See `PlacedExperts`."""
        return self.experts.down

    def __call__(self, x: torch.Tensor, chosen: TopKOutput) -> torch.Tensor:
        """See `PlacedExperts`."""
        placed = self.experts.place(chosen)
        capture_routed_experts_if_allowed(
            self.config,
            self.layer_id,
            placed.ids,
            weights=placed.weights,
            router_logits=self.router_logits,
        )
        return self.experts.run(x, placed)
