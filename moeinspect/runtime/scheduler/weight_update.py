"""New weights in the middle of a run, as a trainer brings them."""

from __future__ import annotations

from dataclasses import dataclass

from moeinspect.runtime.models.qwen3_moe import Qwen3MoeForCausalLM


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """From step `step` on, the weights of `model` serve; it has the target's shape."""

    step: int
    model: Qwen3MoeForCausalLM
