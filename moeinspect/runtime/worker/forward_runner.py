"""Runs the forwards of one model: eagerly, or by replaying a graph where one fits."""

from __future__ import annotations

from moeinspect.runtime.forward_batch import ForwardBatch, ForwardOutput
from moeinspect.runtime.memory.kv_cache import KVCache
from moeinspect.runtime.models.qwen3_moe import Qwen3MoeForCausalLM


class ForwardRunner:
    """A model with its KV cache; target and draft have one each. Used on the compute stream."""

    def __init__(self, model: Qwen3MoeForCausalLM, kv: KVCache) -> None:
        self.model = model
        self.kv = kv

    def run(self, inputs: ForwardBatch) -> ForwardOutput:
        """Computes the rows of `inputs`, stores their keys and values and captures their experts."""
        return self.model.run(inputs, self.kv)
