"""Runs the forwards of one model: eagerly, or (see `graph_runner`) by replaying a graph where one fits."""

from __future__ import annotations

from moeinspect.runtime.faults import NO_FAULTS, ActiveFaults
from moeinspect.runtime.forward_batch import ForwardBatch, ForwardOutput
from moeinspect.runtime.memory.kv_cache import KVCache
from moeinspect.runtime.models.qwen3_moe import Qwen3MoeForCausalLM


class ForwardRunner:
    """A model with its KV cache; target and draft have one each. `run` is for the compute stream."""

    replays_graphs = False

    def __init__(
        self, model: Qwen3MoeForCausalLM, kv: KVCache, *, backend: str, faults: ActiveFaults = NO_FAULTS
    ) -> None:
        self.model = model
        self.kv = kv
        self.backend = backend
        self._faults = faults

    def initialize(self) -> None:
        """Builds the top-k backends and whatever is made from them; a model opts out before."""
        self.model.init_topk_backend(self.backend, self._faults)

    def replace_model(self, model: Qwen3MoeForCausalLM) -> None:
        """Serves `model`, of the same configuration, from now on; no forward may be running."""
        model.keep_hidden(self.model.kept_layers)
        self.model = model
        self.initialize()

    def run(self, inputs: ForwardBatch) -> ForwardOutput:
        """Computes the rows of `inputs`, stores their keys and values and captures their experts."""
        output = self._forward(inputs)
        if self.model.placement is not None:
            self.model.placement.forward_ended()
        return output

    def _forward(self, inputs: ForwardBatch) -> ForwardOutput:
        return self.model.run(inputs, self.kv)
