"""Where the experts of a MoE layer are: more physical slots than experts, so that loaded ones have copies.

Mirrors `ExpertLocationMetadata` and the expert distribution recorder of SGLang (`sglang/srt/eplb`, 0.5.23). A
copy has weights of its own with the values of the expert that it is a copy of, so no bit depends on which
one computes a row. Everybody who routed the same rows has the same placement, without a word exchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.layers.eplb import balanced_placement


@dataclass(frozen=True, slots=True)
class ExpertOptions:
    """How a model's experts are held.

    `redundant` copies a layer, placed anew every `rebalance_interval` forwards; shared experts by themselves
    or, with `fuse_shared`, as columns of the routed ones.
    """

    redundant: int = 0
    rebalance_interval: int = 8
    fuse_shared: bool = False

    @classmethod
    def of(cls, config: RunConfig) -> ExpertOptions:
        """The options of a run's target."""
        return cls(config.redundant_experts, config.rebalance_interval, config.fused_shared_expert)

    @classmethod
    def of_draft(cls, config: RunConfig) -> ExpertOptions:
        """The options of a run's draft, whose experts have no copies."""
        return cls(fuse_shared=config.fused_shared_expert)


PLAIN_EXPERTS = ExpertOptions()
"""Every expert once, in its own slot."""


class LayerPlacement:
    """The maps of one layer between its E experts and its physical slots, and the load since the last change.

    Fused shared experts, E and following, have the last slots and stay there. `expert_of_slot` [P] is the
    expert in each slot. Touched on the compute stream only.
    """

    def __init__(self, num_experts: int, slots_of_rank: Sequence[int], num_shared: int = 0) -> None:
        """`slots_of_rank` are the slots of each rank; the first placement is that of equal loads."""
        self._num_experts = num_experts
        self._shared = range(num_experts, num_experts + num_shared)
        self._slots_of_rank = _without_last(slots_of_rank, num_shared)
        self._place([1] * num_experts)

    @property
    def num_slots(self) -> int:
        """P."""
        return self.expert_of_slot.shape[0]

    @property
    def load(self) -> torch.Tensor:
        """How often each expert [E + shared] was chosen since the placement last changed."""
        return self._load

    def physical(self, expert_ids: torch.Tensor) -> torch.Tensor:
        """Slots [N, K] for experts [N, K], of the same dtype: an expert's choices go round its copies."""
        flat = expert_ids.reshape(-1).long()
        turn = (self._load[flat] + _occurrence(flat)) % self._num_copies[flat]
        return self._slots_of_expert[flat, turn].view(expert_ids.shape).to(expert_ids.dtype)

    def count(self, slots: torch.Tensor) -> None:
        """Adds the choices of a forward to the load: the slots [N, K] of all ranks' rows, without padding."""
        experts = self.expert_of_slot[slots.reshape(-1).long()]
        self._load += torch.bincount(experts, minlength=self._load.shape[0])

    def rebalance(self) -> torch.Tensor | None:
        """Places the experts by the load and starts to count anew.

        Returns, for each slot [P], the slot of the old placement that holds what it has to hold from now on;
        None if nobody was chosen, in which case nothing changes.
        """
        if not self._load.any():
            return None
        first_slot = self._slots_of_expert[:, 0]
        held = self.expert_of_slot
        self._place(self._load[: self._num_experts].tolist())
        stays = held == self.expert_of_slot
        return torch.where(stays, torch.arange(self.num_slots), first_slot[self.expert_of_slot])

    def _place(self, load: Sequence[int]) -> None:
        E = self._num_experts + len(self._shared)
        self.expert_of_slot = torch.tensor([*balanced_placement(load, self._slots_of_rank), *self._shared])
        self._num_copies = torch.bincount(self.expert_of_slot, minlength=E)
        nth = _occurrence(self.expert_of_slot)
        self._slots_of_expert = torch.zeros(E, int(self._num_copies.max()), dtype=torch.int64)
        self._slots_of_expert[self.expert_of_slot, nth] = torch.arange(self.num_slots)
        self._load = torch.zeros(E, dtype=torch.int64)


class Rebalanced(Protocol):
    """The experts of a layer that move with its placement."""

    def rebalance(self) -> None:
        """Places the experts by their load and moves their weights."""


class ExpertPlacement:
    """The placement of a whole target: changes after every `interval` forwards, idle ones included."""

    def __init__(self, layers: Sequence[Rebalanced], interval: int) -> None:
        self._layers = layers
        self._interval = interval
        self._num_forwards = 0

    def forward_ended(self) -> None:
        """Counts a forward of the target; called on the compute stream, behind its kernels."""
        self._num_forwards += 1
        if self._num_forwards % self._interval == 0:
            for layer in self._layers:
                layer.rebalance()


def _without_last(slots_of_rank: Sequence[int], count: int) -> tuple[int, ...]:
    """The slots of each rank without the last `count` of all."""
    slots = list(slots_of_rank)
    for rank in reversed(range(len(slots))):
        taken = min(count, slots[rank])
        slots[rank] -= taken
        count -= taken
    return tuple(slots)


def _occurrence(flat: torch.Tensor) -> torch.Tensor:
    """For each element of a flat tensor of small numbers, how many equal ones stand before it."""
    order = torch.argsort(flat, stable=True)
    counts = torch.bincount(flat)
    starts = counts.cumsum(0) - counts
    result = torch.empty_like(order)
    result[order] = torch.arange(flat.shape[0]) - starts[flat[order]]
    return result
