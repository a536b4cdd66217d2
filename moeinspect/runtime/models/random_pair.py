"""The embedded random targets and their MoE drafts: drawn in memory from a seed.

The draft is the target cut down to its first layers: it shares embedding, head, norms, attention and the
dense MLP, but has routers and experts of its own. So it often proposes the target's token, while on the
MoE layers that both have its choice of experts has nothing to do with the target's. A shared expert, where a
pair has one, is the same in both; tables of hash-routed layers are each model's own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from moeinspect.runtime.models.config import ModelConfig
from moeinspect.runtime.models.draw import draw_choices, draw_normal
from moeinspect.runtime.models.expected import HASH_TABLE, expected_shapes
from moeinspect.runtime.models.weights import MemoryWeights

NUM_BYTES = 256
EOS_ID = 257


@dataclass(frozen=True, slots=True)
class _Spec:
    """One embedded model: how deep it is, under which names its weights are drawn, what else it has."""

    num_layers: int
    shared_key: str
    expert_key: str
    num_shared_experts: int = 0
    hash_layers: tuple[int, ...] = ()


_SPECS = {
    "random": _Spec(num_layers=6, shared_key="tiny", expert_key="tiny"),
    "random-draft": _Spec(num_layers=3, shared_key="tiny", expert_key="tiny-draft"),
    "random-shared": _Spec(num_layers=6, shared_key="tiny", expert_key="tiny", num_shared_experts=1),
    "random-shared-draft": _Spec(
        num_layers=3, shared_key="tiny", expert_key="tiny-draft", num_shared_experts=1
    ),
    "random-hash": _Spec(num_layers=6, shared_key="tiny", expert_key="tiny", hash_layers=(1, 2)),
    "random-hash-draft": _Spec(num_layers=3, shared_key="tiny", expert_key="tiny-draft", hash_layers=(1, 2)),
}
RANDOM_NAMES = tuple(_SPECS)

_SEED = 7  # greedy decoding of the built-in prompts does not fall into short loops
_DEPTH_DECAY = 0.6
"""What a layer adds to the residual stream shrinks with depth, so that the draft, which lacks the deeper
layers, agrees with the target on roughly every third token."""
_HEAD_SCALE = 2.5
"""Sharper logits than a plain draw gives: otherwise sampling at temperature 1 is nearly uniform."""


def random_model(name: str) -> tuple[ModelConfig, MemoryWeights]:
    """Configuration and weights (bfloat16) of one of `RANDOM_NAMES`."""
    spec = _SPECS[name]
    config = _config(name, spec)
    return config, MemoryWeights(config.name, _draw(config, spec))


def _config(name: str, spec: _Spec) -> ModelConfig:
    return ModelConfig(
        name=f"builtin:{name}",
        num_hidden_layers=spec.num_layers,
        hidden_size=64,
        intermediate_size=128,
        moe_intermediate_size=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_experts=32,
        top_k=4,
        norm_topk_prob=True,
        vocab_size=320,
        moe_layers=tuple(range(1, spec.num_layers)),
        max_position_embeddings=2048,
        eos_token_ids=(EOS_ID,),
        num_shared_experts=spec.num_shared_experts,
        hash_layers=spec.hash_layers,
    )


def _draw(config: ModelConfig, spec: _Spec) -> dict[str, torch.Tensor]:
    """All tensors; the experts of a layer come from three draws, whose rows are handed out."""
    E, H, I = config.num_experts, config.hidden_size, config.moe_intermediate_size  # noqa: E741
    tensors: dict[str, torch.Tensor] = {}
    for layer in config.moe_layers:
        prefix = f"model.layers.{layer}.mlp.experts"
        for part, shape in (("gate_proj", (E, I, H)), ("up_proj", (E, I, H)), ("down_proj", (E, H, I))):
            stack = _draw_one(spec.expert_key, f"{prefix}.{part}.weight", shape)
            for expert, weight in enumerate(stack.unbind(0)):
                tensors[f"{prefix}.{expert}.{part}.weight"] = weight
    for name, shape_of_one in expected_shapes(config):
        if name not in tensors:
            key = spec.expert_key if ".mlp.gate." in name else spec.shared_key
            if name.endswith(HASH_TABLE):
                tensors[name] = _draw_table(key, name, config)
            else:
                tensors[name] = _draw_one(key, name, shape_of_one)
    return tensors


def _draw_one(key: str, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Embeddings N(0, 1), norms 1 + 0.1 N, matrices N(0, 1 / fan-in) times their scale."""
    key = f"s{_SEED}/{key}/{name}"
    if "embed_tokens" in name:
        return draw_normal(key, shape, 1.0)
    if "norm" in name:
        return draw_normal(key, shape, 0.1, 1.0)
    return draw_normal(key, shape, _scale(name) * float(shape[-1]) ** -0.5)


def _draw_table(key: str, name: str, config: ModelConfig) -> torch.Tensor:
    """Experts of each token [V, K], all sets and orders alike."""
    key = f"s{_SEED}/{key}/{name}"
    return draw_choices(key, config.vocab_size, config.top_k, among=config.num_experts)


def _scale(name: str) -> float:
    if "lm_head" in name:
        return _HEAD_SCALE
    if "o_proj" in name or "down_proj" in name:
        layer = int(name.split(".")[2])
        return _DEPTH_DECAY**layer
    return 1.0
