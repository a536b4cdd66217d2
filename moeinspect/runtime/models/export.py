"""Writes an embedded model as an ordinary Hugging Face checkpoint folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from moeinspect.errors import InputError, OutputError
from moeinspect.runtime.models.builtin import open_builtin
from moeinspect.runtime.models.checkpoint import SINGLE_FILE
from moeinspect.runtime.models.config import MODEL_TYPE, ModelConfig
from moeinspect.runtime.models.tokenizer import TOKENIZER_FILE, load_tokenizer


def export_checkpoint(model_name: str, folder: str | Path) -> None:
    """Writes `config.json`, `model.safetensors` and `tokenizer.json` of `builtin:NAME` into `folder`.

    The folder loads as the same model, with the same fingerprint.

    Raises:
        InputError: no such embedded model, or it has what a Qwen3-MoE checkpoint cannot say.
        OutputError: the folder holds a checkpoint already or cannot be written.
    """
    config, weights = open_builtin(model_name)
    if config.num_shared_experts:
        raise InputError(
            f"{model_name} has shared experts, for which a {MODEL_TYPE} checkpoint has no place",
            "export builtin:random",
        )
    tokenizer = load_tokenizer(model_name)
    target = Path(folder)
    existing = [name for name in ("config.json", SINGLE_FILE, TOKENIZER_FILE) if (target / name).exists()]
    if existing:
        raise OutputError(f"{target / existing[0]}: exists already", "name an empty folder")
    try:
        target.mkdir(parents=True, exist_ok=True)
        (target / "config.json").write_text(json.dumps(_config_json(config), indent=2) + "\n")
        if tokenizer is not None:
            (target / TOKENIZER_FILE).write_text(tokenizer.to_json())
        tensors = {name: weights.tensor(name).contiguous() for name in weights.infos}
        save_file(tensors, target / SINGLE_FILE, metadata={"format": "pt"})
    except OSError as error:
        raise OutputError(f"{target}: cannot be written: {error.strerror}") from error


def _config_json(config: ModelConfig) -> dict[str, Any]:
    dense = [i for i in range(config.num_hidden_layers) if i not in config.moe_layers]
    kinds = dict.fromkeys(dense, "dense") | dict.fromkeys(config.hash_layers, "hash_moe")
    layer_types = [kinds.get(i, "moe") for i in range(config.num_hidden_layers)]
    return {
        "architectures": [config.architecture],
        "model_type": MODEL_TYPE,
        "num_hidden_layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "moe_intermediate_size": config.moe_intermediate_size,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "num_experts": config.num_experts,
        "num_experts_per_tok": config.top_k,
        "norm_topk_prob": config.norm_topk_prob,
        "decoder_sparse_step": 1,
        "mlp_only_layers": dense,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": None,
        "attention_bias": config.attention_bias,
        "tie_word_embeddings": config.tie_word_embeddings,
        "hidden_act": "silu",
        "eos_token_id": list(config.eos_token_ids),
        "torch_dtype": "bfloat16",
    } | ({"mlp_layer_types": layer_types} if config.hash_layers else {})
