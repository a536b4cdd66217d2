"""The tensors that a Qwen3-MoE checkpoint must hold, and the check that it does."""

from __future__ import annotations

import re
from collections.abc import Iterator

from moeinspect.errors import InputError
from moeinspect.runtime.models.config import ModelConfig
from moeinspect.runtime.models.weights import FLOAT_DTYPES, INTEGER_DTYPES, WeightSource

# Buffers that older versions of transformers saved along; they follow from the configuration.
_HARMLESS = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq|model\.rotary_emb\.inv_freq")
LM_HEAD = "lm_head.weight"
SHARED_EXPERTS = "shared_experts"
"""DeepSeek's name for the shared expert of a layer."""

HASH_TABLE = "gate.tid2eid"
"""Of a hash-routed layer: the experts of each token id."""

_FUSED_EXPERTS = re.compile(r"model\.layers\.\d+\.mlp\.experts\.(gate_up_proj|down_proj)")


def expected_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of all tensors of a model; a tied `lm_head` is not among them."""
    yield "model.embed_tokens.weight", (config.vocab_size, config.hidden_size)
    yield "model.norm.weight", (config.hidden_size,)
    if not config.tie_word_embeddings:
        yield LM_HEAD, (config.vocab_size, config.hidden_size)
    for layer in range(config.num_hidden_layers):
        yield from _layer_shapes(config, layer)


def _layer_shapes(config: ModelConfig, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    H, D = config.hidden_size, config.head_dim
    prefix = f"model.layers.{layer}"
    yield f"{prefix}.input_layernorm.weight", (H,)
    yield f"{prefix}.post_attention_layernorm.weight", (H,)
    yield f"{prefix}.self_attn.q_norm.weight", (D,)
    yield f"{prefix}.self_attn.k_norm.weight", (D,)
    q, kv = config.num_attention_heads * D, config.num_key_value_heads * D
    for name, out, fan_in in (("q", q, H), ("k", kv, H), ("v", kv, H), ("o", H, q)):
        yield f"{prefix}.self_attn.{name}_proj.weight", (out, fan_in)
        if config.attention_bias:
            yield f"{prefix}.self_attn.{name}_proj.bias", (out,)
    if layer not in config.moe_layers:
        yield from _mlp_shapes(f"{prefix}.mlp", H, config.intermediate_size)
        return
    yield f"{prefix}.mlp.gate.weight", (config.num_experts, H)
    if layer in config.hash_layers:
        yield f"{prefix}.mlp.{HASH_TABLE}", (config.vocab_size, config.top_k)
    for expert in range(config.num_experts):
        yield from _mlp_shapes(f"{prefix}.mlp.experts.{expert}", H, config.moe_intermediate_size)
    if config.num_shared_experts:
        yield from _mlp_shapes(f"{prefix}.mlp.{SHARED_EXPERTS}", H, config.moe_intermediate_size)


def _mlp_shapes(prefix: str, hidden: int, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{prefix}.gate_proj.weight", (width, hidden)
    yield f"{prefix}.up_proj.weight", (width, hidden)
    yield f"{prefix}.down_proj.weight", (hidden, width)


def check_tensors(config: ModelConfig, source: WeightSource) -> frozenset[str]:
    """Checks names, shapes and dtypes before anything is read; returns the names of the model's tensors.

    Raises:
        InputError: a tensor is missing, unexpected, of another shape, or of a dtype of another kind.
    """
    fused = next((name for name in source.infos if _FUSED_EXPERTS.fullmatch(name)), None)
    if fused is not None:
        raise InputError(
            f"{source.infos[fused].file}: tensor {fused} holds all experts of a layer at once, "
            "a layout that is not supported yet",
            "save the checkpoint with one tensor per expert, as save_pretrained does by default",
        )
    names = set()
    for name, shape in expected_shapes(config):
        names.add(name)
        info = source.infos.get(name)
        if info is None:
            raise InputError(f"{source.name}: tensor {name} is missing", "the checkpoint is incomplete")
        if info.shape != shape:
            raise InputError(
                f"{info.file}: tensor {name} has shape {list(info.shape)}, "
                f"but the configuration asks for {list(shape)}"
            )
        if info.dtype not in (INTEGER_DTYPES if name.endswith(HASH_TABLE) else FLOAT_DTYPES):
            raise InputError(f"{info.file}: tensor {name} has dtype {info.dtype}, which is not supported")
    tied = {LM_HEAD} if config.tie_word_embeddings else set()
    for name, info in source.infos.items():
        if name not in names and name not in tied and not _HARMLESS.fullmatch(name):
            raise InputError(
                f"{info.file}: unexpected tensor {name}", "the model of config.json has no place for it"
            )
    return frozenset(names)
