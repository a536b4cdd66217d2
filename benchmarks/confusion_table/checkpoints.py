"""Checkpoint folders of drawn sizes, each with a draft and with newer weights.

Drawn as the embedded random models are: the draft is the target cut down to its first layers, with routers
and experts of its own, so that it is often right about the token and never about the experts.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from moeinspect.runtime.models.config import ModelConfig, parse_config
from moeinspect.runtime.models.draw import draw_choices, draw_normal
from moeinspect.runtime.models.expected import HASH_TABLE, expected_shapes

_DEPTH_DECAY, _HEAD_SCALE = 0.6, 2.5
"""As in `random_pair`: greedy outputs neither fall into loops nor depart from the draft's at once."""


def draw_checkpoints(rng: random.Random, folder: Path) -> int:
    """Writes `target`, `draft` and `updated` below `folder`; returns the number of token ids."""
    target = _sizes(rng)
    moe = parse_config(target, name="target", source="target").moe_layers
    depth = rng.randint(moe[0] + 1, moe[-1])
    draft = dict(target) | {
        "num_hidden_layers": depth,
        "mlp_only_layers": [layer for layer in target["mlp_only_layers"] if layer < depth],
    }
    if "mlp_layer_types" in target:
        draft["mlp_layer_types"] = target["mlp_layer_types"][:depth]
    key = f"{rng.random()}"
    _write(folder / "target", target, key, key + "/target")
    _write(folder / "draft", draft, key, key + "/draft")
    _write(folder / "updated", target, key, key + "/updated")
    return int(target["vocab_size"])


def _sizes(rng: random.Random) -> dict[str, Any]:
    """A `config.json` of 2 to 7 MoE layers, dense ones mixed in."""
    num_experts = rng.choice((6, 8, 12, 16, 24, 32, 48, 64, 128))
    layers = rng.randint(3, 8)
    dense = sorted(
        rng.sample(range(layers), rng.choice((0, 0, 1, 1, 2)) if layers > 4 else rng.randint(0, 1))
    )
    kinds = ["dense" if layer in dense else "moe" for layer in range(layers)]
    moe = [layer for layer in range(layers) if layer not in dense]
    hashed = moe[: rng.randint(1, 2)] if rng.random() < 0.15 and len(moe) > 3 else []
    for layer in hashed:
        kinds[layer] = "hash_moe"
    heads = rng.choice((2, 4))
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_hidden_layers": layers,
        "hidden_size": rng.choice((24, 32, 48, 64)),
        "intermediate_size": rng.choice((32, 48)),
        "moe_intermediate_size": rng.choice((8, 16, 24)),
        "num_attention_heads": heads,
        "num_key_value_heads": rng.choice((2, heads)),
        "head_dim": rng.choice((8, 16)),
        "num_experts": num_experts,
        "num_experts_per_tok": rng.randint(2, min(8, num_experts // 2)),
        "norm_topk_prob": rng.random() < 0.5,
        "decoder_sparse_step": 1,
        "mlp_only_layers": dense,
        "vocab_size": rng.choice((64, 200, 320, 700)),
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": rng.random() < 0.3,
        "attention_bias": rng.random() < 0.3,
        "torch_dtype": "bfloat16",
    } | ({"mlp_layer_types": kinds} if hashed else {})


def _write(folder: Path, data: dict[str, Any], shared_key: str, expert_key: str) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(data))
    config = parse_config(data, name=folder.name, source=str(folder))
    tensors = {
        name: _draw(name, shape, expert_key if _is_own(name) else shared_key, config)
        for name, shape in expected_shapes(config)
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _is_own(name: str) -> bool:
    return ".mlp.experts." in name or ".mlp.gate." in name


def _draw(name: str, shape: tuple[int, ...], key: str, config: ModelConfig) -> torch.Tensor:
    """Embeddings N(0, 1), norms 1 + 0.1 N, biases 0.1 N, matrices N(0, 1 / fan-in) times their scale."""
    key = f"{key}/{name}"
    if name.endswith(HASH_TABLE):
        return draw_choices(key, config.vocab_size, config.top_k, among=config.num_experts)
    if "embed_tokens" in name:
        return draw_normal(key, shape, 1.0)
    if "norm" in name:
        return draw_normal(key, shape, 0.1, 1.0)
    if name.endswith("bias"):
        return draw_normal(key, shape, 0.1)
    scale = _HEAD_SCALE if "lm_head" in name else 1.0
    if "o_proj" in name or "down_proj" in name:
        scale = _DEPTH_DECAY ** int(name.split(".")[2])
    return draw_normal(key, shape, scale * float(shape[-1]) ** -0.5)
