"""The draft heads of `builtin:random`, drawn in memory.

They share its embedding, final norm and output head, and their experts are cut from its dense layer. What a
head makes of the hidden states before a token is little beside the token itself, whose embedding leads to the
target's own choice often enough: NextN has about every fifth proposal accepted, EAGLE3 every tenth. The
routers are their own.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from moeinspect.runtime.models.config import ModelConfig
from moeinspect.runtime.models.draft_heads import EAGLE3, NEXTN
from moeinspect.runtime.models.draw import draw_normal
from moeinspect.runtime.models.random_pair import random_model
from moeinspect.runtime.models.weights import MemoryWeights

MOE_LAYER = 1
"""The id of a head's MoE layer, which a MoE layer of the target has, too."""

RANDOM_HEADS = {"random-nextn": NEXTN, "random-eagle3": EAGLE3}

_SHARED = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")
_NUM_READ = 3
"""Hidden states that EAGLE3 reads."""

_HIDDEN_SHARE = 0.1
"""Of NextN's projection: enough that a wrong hidden state is felt, little enough that the token decides."""

_EXPERT_SCALE = 2.0
"""Four quarters, of which a router picks some twice: half of each is the best guess at the whole."""

_SHARPNESS = 2.0
"""Of EAGLE3's normed queries and keys: high enough that a token attends to itself nearly alone."""

_HIDDEN_RMS = 1.2
"""About the size of EAGLE3's residual, the hidden state before the token. Its attention subtracts so much of
that direction, since it was made for another token."""


def random_head(name: str) -> tuple[ModelConfig, MemoryWeights]:
    """Configuration and weights (bfloat16) of one of `RANDOM_HEADS`."""
    target, weights = random_model("random")
    config = replace(
        target,
        name=f"builtin:{name}",
        architecture=RANDOM_HEADS[name],
        num_hidden_layers=1,
        moe_layers=(MOE_LAYER,),
    )
    tensors = {key: weights.tensor(key) for key in _SHARED}
    tensors |= _experts(config, weights, name)
    if config.architecture == EAGLE3:
        config = replace(config, num_key_value_heads=config.num_attention_heads)
        tensors |= _eagle3(config, weights, name)
    else:
        tensors |= _nextn(config, weights, name)
    return config, MemoryWeights(config.name, tensors)


def _nextn(config: ModelConfig, target: MemoryWeights, key: str) -> dict[str, torch.Tensor]:
    """Attention and norms of the target's first layer behind a projection that lets the token through."""
    prefix = "model.layers.0."
    tensors = {
        name: target.tensor(name) for name in target.infos if name.startswith(prefix) and ".mlp." not in name
    }
    H = config.hidden_size
    hidden = draw_normal(f"{key}/eh_proj", (H, H), _HIDDEN_SHARE * H**-0.5)
    return tensors | {
        "model.enorm.weight": _ones(H),
        "model.hnorm.weight": _ones(H),
        "model.eh_proj.weight": torch.cat([_eye(H), hidden], dim=1),
    }


def _eagle3(config: ModelConfig, target: MemoryWeights, key: str) -> dict[str, torch.Tensor]:
    """An attention that brings each token's own embedding into the residual of its hidden states."""
    H, D = config.hidden_size, config.head_dim
    prefix = "model.layers.0."
    post_norm = f"{prefix}post_attention_layernorm.weight"
    queries = torch.cat([draw_normal(f"{key}/qk", (H, H), H**-0.5), _zeros(H)], dim=1)
    return {
        "model.enorm.weight": _ones(H),
        "model.hnorm.weight": _ones(H),
        "model.fc.weight": draw_normal(f"{key}/fc", (H, _NUM_READ * H), (_NUM_READ * H) ** -0.5),
        f"{prefix}input_layernorm.weight": _ones(H),
        post_norm: target.tensor(post_norm),
        f"{prefix}self_attn.q_norm.weight": _ones(D) * _SHARPNESS,
        f"{prefix}self_attn.k_norm.weight": _ones(D) * _SHARPNESS,
        f"{prefix}self_attn.q_proj.weight": queries,
        f"{prefix}self_attn.k_proj.weight": queries,
        f"{prefix}self_attn.v_proj.weight": torch.cat([_eye(H), _eye(H) * -_HIDDEN_RMS], dim=1),
        f"{prefix}self_attn.o_proj.weight": _eye(H),
    }


def _experts(config: ModelConfig, target: MemoryWeights, key: str) -> dict[str, torch.Tensor]:
    """Each expert is a quarter of the dense MLP of the target's first layer; the router is the head's own."""
    E, H, I = config.num_experts, config.hidden_size, config.moe_intermediate_size  # noqa: E741
    prefix = "model.layers.0.mlp"
    gate, up, down = (target.tensor(f"{prefix}.{part}_proj.weight") for part in ("gate", "up", "down"))
    tensors = {f"{prefix}.gate.weight": draw_normal(f"{key}/gate", (E, H), H**-0.5)}
    for i in range(E):
        first = i * I % config.intermediate_size
        quarter, expert = slice(first, first + I), f"{prefix}.experts.{i}"
        tensors[f"{expert}.gate_proj.weight"] = gate[quarter]
        tensors[f"{expert}.up_proj.weight"] = up[quarter]
        tensors[f"{expert}.down_proj.weight"] = down[:, quarter] * _EXPERT_SCALE
    return tensors


def _eye(n: int) -> torch.Tensor:
    return torch.eye(n, dtype=torch.bfloat16)


def _zeros(n: int) -> torch.Tensor:
    return torch.zeros(n, n, dtype=torch.bfloat16)


def _ones(n: int) -> torch.Tensor:
    return torch.ones(n, dtype=torch.bfloat16)
