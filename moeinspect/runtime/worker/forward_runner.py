"""Runs the forwards of one model: eagerly, or (see `graph_runner`) by replaying a graph where one fits."""

from __future__ import annotations

import torch

from moeinspect.runtime.faults import NO_FAULTS, ActiveFaults
from moeinspect.runtime.forward_batch import ForwardBatch, ForwardOutput, empty_batch
from moeinspect.runtime.memory.kv_cache import KVCache
from moeinspect.runtime.models.qwen3_moe import Qwen3MoeForCausalLM
from moeinspect.runtime.parallel.commands import MoveKV, ReplaceModel
from moeinspect.runtime.parallel.team import ALONE, Team


class ForwardRunner:
    """A model with its KV cache; target and draft have one each. What it does is for the compute stream.

    `team` are the other ranks that hold a share of the model, and do what is done here on theirs.
    """

    replays_graphs = False

    def __init__(
        self,
        model: Qwen3MoeForCausalLM,
        kv: KVCache,
        *,
        backend: str,
        faults: ActiveFaults = NO_FAULTS,
        team: Team = ALONE,
    ) -> None:
        self.model = model
        self.kv = kv
        self.backend = backend
        self._faults = faults
        self._team = team

    def initialize(self) -> None:
        """Builds the top-k backends and whatever is made from them; a model opts out before."""
        self.model.init_topk_backend(self.backend, self._faults)

    def replace_model(self, model: Qwen3MoeForCausalLM) -> None:
        """Serves `model`, of the same configuration, from now on; no forward may be running."""
        self._team.tell(ReplaceModel())
        model.keep_hidden(self.model.kept_layers)
        self.model = model
        self.initialize()

    def run(self, inputs: ForwardBatch) -> ForwardOutput:
        """Computes the rows of `inputs`, stores their keys and values and captures their experts."""
        return self.compute(self._team.begin(inputs))

    def run_idle(self) -> None:
        """A forward without rows, for the experts' sake."""
        self.compute_idle(self._team.begin(empty_batch()))

    def move_kv(self, from_slots: torch.Tensor, to_slots: torch.Tensor) -> None:
        """Copies keys and values of slots [n] to other slots [n]."""
        self._team.tell(MoveKV(from_slots, to_slots))
        self.kv.move(from_slots, to_slots)

    def compute(self, inputs: ForwardBatch) -> ForwardOutput:
        """This rank's part of a forward that has begun."""
        output = self._forward(inputs)
        self._forward_ended()
        return output

    def compute_idle(self, inputs: ForwardBatch) -> None:
        """This rank's part of one without rows."""
        self.model.run_idle(inputs)
        self._forward_ended()

    def _forward(self, inputs: ForwardBatch) -> ForwardOutput:
        return self.model.run(inputs, self.kv)

    def _forward_ended(self) -> None:
        if self.model.placement is not None:
            self.model.placement.forward_ended()
