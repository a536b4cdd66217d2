"""Facts of a Qwen3-MoE model, read from `config.json` in the old and the new spelling of its keys.

Key names follow transformers' `Qwen3MoeConfig` (4.51 and 5.24). This module does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moeinspect.errors import InputError
from moeinspect.runtime.models.fields import Fields

ARCHITECTURE = "Qwen3MoeForCausalLM"
MODEL_TYPE = "qwen3_moe"
_DEFAULT_ROPE_THETA = 10000.0
_MAX_LAYERS = 10000
MAX_EXPERTS = 65535
"""What a trace can hold."""


_EXTRAS = ("num_shared_experts", "hash_layers")
"""What most models lack: a model without has the fingerprint that it had before these were known."""

_HASH_ROUTED = "hash_moe"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What the runtime has to know of a model.

    `moe_layers` holds the absolute indices of the layers with experts, the others have a dense MLP.
    `hash_layers` are those among them whose experts follow from the token by a table (DeepSeek-V4).
    Each MoE layer may have one shared expert, of the routed ones' size, that every row goes through.
    `fingerprint` is a SHA-256 over the configuration and the weights; empty until they are loaded.
    """

    name: str
    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    moe_intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    num_experts: int
    top_k: int
    norm_topk_prob: bool
    vocab_size: int
    moe_layers: tuple[int, ...]
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = _DEFAULT_ROPE_THETA
    attention_bias: bool = False
    tie_word_embeddings: bool = False
    eos_token_ids: tuple[int, ...] = ()
    num_shared_experts: int = 0
    hash_layers: tuple[int, ...] = ()
    architecture: str = ARCHITECTURE
    fingerprint: str = ""

    @property
    def essentials(self) -> dict[str, Any]:
        """The fields that change what the model computes; part of the fingerprint."""
        outside = {"name", "eos_token_ids", "fingerprint", "max_position_embeddings"}
        values = {field: getattr(self, field) for field in self.__slots__ if field not in outside}
        return {field: value for field, value in values.items() if value or field not in _EXTRAS}


def parse_config(data: Mapping[str, Any], *, name: str, source: str) -> ModelConfig:
    """Reads the object of a `config.json`; `source` is the file named in errors.

    Raises:
        InputError: another architecture, a feature that the runtime lacks, a missing or nonsensical value.
    """
    fields = Fields(data, source)
    _refuse_other_models(fields)
    _refuse_unsupported(fields)
    config = _read(fields, name)
    _check(config, source)
    return config


def _read(fields: Fields, name: str) -> ModelConfig:
    hidden = fields.integer("hidden_size")
    heads = fields.integer("num_attention_heads")
    return ModelConfig(
        name=name,
        num_hidden_layers=fields.integer("num_hidden_layers"),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        moe_intermediate_size=fields.integer("moe_intermediate_size"),
        num_attention_heads=heads,
        num_key_value_heads=fields.integer("num_key_value_heads", default=heads),
        head_dim=_head_dim(fields, hidden, heads),
        num_experts=_num_experts(fields),
        top_k=fields.integer("num_experts_per_tok"),
        norm_topk_prob=fields.boolean("norm_topk_prob", default=False),
        vocab_size=fields.integer("vocab_size"),
        moe_layers=_moe_layers(fields),
        max_position_embeddings=fields.integer("max_position_embeddings"),
        rms_norm_eps=fields.number("rms_norm_eps", default=1e-6),
        rope_theta=_rope_theta(fields),
        attention_bias=fields.boolean("attention_bias", default=False),
        tie_word_embeddings=fields.boolean("tie_word_embeddings", default=False),
        eos_token_ids=eos_token_ids(fields),
        hash_layers=_hash_layers(fields),
    )


def eos_token_ids(fields: Fields) -> tuple[int, ...]:
    """`eos_token_id` of a `config.json` or `generation_config.json`: absent, one id or a list of ids."""
    value = fields.get("eos_token_id")
    if value is None:
        return ()
    ids = value if isinstance(value, list) else [value]
    if not all(type(i) is int and i >= 0 for i in ids):
        raise fields.error("eos_token_id", "must be a token id or a list of them")
    return tuple(ids)


def _head_dim(fields: Fields, hidden: int, heads: int) -> int:
    if fields.get("head_dim") is not None:
        return fields.integer("head_dim")
    if hidden % heads:
        raise fields.error("hidden_size", f"{hidden} is not divisible by num_attention_heads {heads}")
    return hidden // heads


def _num_experts(fields: Fields) -> int:
    old, new = fields.get("num_experts"), fields.get("num_local_experts")
    if old is not None and new is not None and old != new:
        raise fields.error("num_experts", f"{old} contradicts num_local_experts {new}")
    return fields.integer("num_experts" if new is None else "num_local_experts")


def _moe_layers(fields: Fields) -> tuple[int, ...]:
    step = fields.integer("decoder_sparse_step", default=1)
    dense = fields.integers("mlp_only_layers")
    layers = range(fields.integer("num_hidden_layers"))
    if len(layers) > _MAX_LAYERS:
        raise fields.error("num_hidden_layers", f"{len(layers)} is more than any model has")
    outside = [i for i in dense if i not in layers]
    if outside:
        raise fields.error("mlp_only_layers", f"names layer {outside[0]}, the model has {len(layers)}")
    return tuple(i for i in layers if i not in dense and (i + 1) % step == 0)


def _hash_layers(fields: Fields) -> tuple[int, ...]:
    """The layers that `mlp_layer_types`, a key of DeepSeek-V4, calls `hash_moe`."""
    kinds = fields.strings("mlp_layer_types")
    return tuple(layer for layer, kind in enumerate(kinds) if kind == _HASH_ROUTED)


def _rope_theta(fields: Fields) -> float:
    parameters = fields.get("rope_parameters")
    if isinstance(parameters, Mapping) and "rope_theta" in parameters:
        return Fields(parameters, f"{fields.source}: rope_parameters").number("rope_theta")
    return fields.number("rope_theta", default=_DEFAULT_ROPE_THETA)


def _refuse_other_models(fields: Fields) -> None:
    model_type = fields.get("model_type")
    architectures = fields.strings("architectures")
    if model_type is None:
        raise fields.error("model_type", "is missing")
    if model_type != MODEL_TYPE:
        raise fields.error("model_type", f"{model_type!r} is not supported", "this runtime loads qwen3_moe")
    if architectures and ARCHITECTURE not in architectures:
        raise fields.error(
            "architectures", f"{architectures[0]!r} is not supported", f"this runtime loads {ARCHITECTURE}"
        )


def _refuse_unsupported(fields: Fields) -> None:
    if fields.get("quantization_config"):
        raise fields.error("quantization_config", "quantised checkpoints are not supported")
    if fields.get("use_sliding_window") and fields.get("sliding_window") is not None:
        raise fields.error("use_sliding_window", "sliding-window attention is not supported")
    if any(kind != "full_attention" for kind in fields.strings("layer_types")):
        raise fields.error("layer_types", "only full_attention is supported")
    activation = fields.get("hidden_act", "silu")
    if activation != "silu":
        raise fields.error("hidden_act", f"{activation!r} is not supported", "this runtime has silu")
    for key in ("rope_scaling", "rope_parameters"):
        _refuse_scaled_rope(fields, key)


def _refuse_scaled_rope(fields: Fields, key: str) -> None:
    rope = fields.get(key)
    if rope is None:
        return
    if not isinstance(rope, Mapping):
        raise fields.error(key, "must be an object")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise fields.error(key, f"rope type {kind!r} is not supported", "this runtime has the default one")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise fields.error(key, "a partial_rotary_factor is not supported")


def _check(config: ModelConfig, source: str) -> None:
    def refuse(problem: str) -> InputError:
        return InputError(f"{source}: {problem}")

    if not config.moe_layers:
        raise refuse("the model has no layer with experts, so there is no routing to record")
    for layer in config.hash_layers:
        if layer not in config.moe_layers:
            raise refuse(f"mlp_layer_types calls layer {layer} {_HASH_ROUTED}, but it has no experts")
    if config.top_k > config.num_experts:
        raise refuse(f"num_experts_per_tok {config.top_k} exceeds the {config.num_experts} experts")
    if config.num_experts > MAX_EXPERTS:
        raise refuse(f"{config.num_experts} experts are more than a trace can hold ({MAX_EXPERTS})")
    if config.num_attention_heads % config.num_key_value_heads:
        raise refuse(
            f"num_attention_heads {config.num_attention_heads} is not divisible by "
            f"num_key_value_heads {config.num_key_value_heads}"
        )
    if config.head_dim % 2:
        raise refuse(f"head_dim {config.head_dim} is odd, which rotary embeddings do not allow")
