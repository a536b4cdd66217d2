"""Loads the models of a run, and says how much room they need."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from moeinspect.errors import InputError, UsageError
from moeinspect.runtime.builtin_names import RANDOM_SHARED, draft_model_of
from moeinspect.runtime.capture.capturer import CaptureShape
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.faults import PHYSICAL_IDS, SHARED_EXPERT_COLUMN, ActiveFaults
from moeinspect.runtime.layers.placement import ExpertOptions
from moeinspect.runtime.memory.kv_cache import KVShape
from moeinspect.runtime.models.config import ModelConfig
from moeinspect.runtime.models.draft_heads import DraftHead
from moeinspect.runtime.models.loader import load_model
from moeinspect.runtime.models.qwen3_moe import Qwen3MoeForCausalLM
from moeinspect.runtime.parallel.communicator import Communicator
from moeinspect.runtime.parallel.layout import RankLayout, RankPlace
from moeinspect.runtime.parallel.shard import WHOLE, ModelShard
from moeinspect.runtime.plan import Plan

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_target(config: RunConfig, ranks: Communicator | None = None) -> Qwen3MoeForCausalLM:
    """The target, or this rank's share of it.

    Raises:
        InputError: it cannot be loaded, or is a draft head.
        UsageError: it has no shared expert that could be fused.
    """
    target = _load_target(config, config.model, ranks)
    if isinstance(target, DraftHead):
        raise InputError(
            f"{config.model} is a draft head and cannot run alone", f"use it with --draft {config.model}"
        )
    if config.fused_shared_expert and not target.config.num_shared_experts:
        raise UsageError(
            f"--fused-shared-expert: {config.model} has no shared expert",
            f"use {RANDOM_SHARED} or leave it out",
        )
    return target


def load_draft(config: RunConfig) -> list[Qwen3MoeForCausalLM]:
    """The draft model, if the run has one.

    Raises:
        InputError: it cannot be loaded.
    """
    draft = draft_model_of(config.draft)
    if draft is None:
        return []
    return [
        load_model(
            draft,
            dtype=DTYPES[config.dtype],
            deterministic=config.deterministic,
            experts=ExpertOptions.of_draft(config),
        )
    ]


def load_update(
    config: RunConfig, name: str, target: Qwen3MoeForCausalLM, ranks: Communicator | None = None
) -> Qwen3MoeForCausalLM:
    """The model that a weight update brings, or this rank's share of it.

    Raises:
        InputError: it cannot be loaded, or is not of the target's shape.
    """
    try:
        model = _load_target(config, name, ranks)
    except InputError as error:
        raise InputError(f"--weight-update {error.message}", error.hint) from error
    if model.config.essentials != target.config.essentials:
        raise InputError(
            f"--weight-update {name}: its config differs from that of {config.model}",
            "give a checkpoint of the same model",
        )
    return model


def kv_shapes(
    config: RunConfig, plan: Plan, models: Sequence[ModelConfig], place: RankPlace
) -> list[KVShape]:
    """Sizes of the KV caches of the rank at `place`: its share of the target, and the draft if it leads."""
    target, *draft = models
    dtype = DTYPES[config.dtype]
    shard = ModelShard(RankLayout.of(config), place)
    shapes = [shard.kv_shape(target, plan.num_slots, dtype)]
    if place.is_leader:
        shapes += [WHOLE.kv_shape(model, plan.num_slots, dtype) for model in draft]
    return shapes


def capture_shape(config: RunConfig, plan: Plan, target: Qwen3MoeForCausalLM) -> CaptureShape:
    """Sizes of the capture buffers."""
    num_shared = num_shared_columns(config, target.config)
    num_copies = config.redundant_experts if PHYSICAL_IDS in config.faults else 0
    return CaptureShape(
        layer_ids=target.config.moe_layers,
        top_k=target.config.top_k,
        num_experts=target.config.num_experts + num_copies + num_shared,
        max_tokens=plan.max_tokens * config.dp_size,
        num_slots=plan.num_slots,
        with_weights=config.weights,
        with_margins=config.margins,
        num_shared_columns=num_shared,
    )


def num_shared_columns(config: RunConfig, model: ModelConfig) -> int:
    """Columns of shared experts that are captured beside the router's choice: none in a healthy run."""
    if SHARED_EXPERT_COLUMN in config.faults and config.fused_shared_expert:
        return model.num_shared_experts
    return 0


def _load_target(config: RunConfig, name: str, ranks: Communicator | None) -> Qwen3MoeForCausalLM:
    """A model whose experts are held as the run wants those of its target."""
    return load_model(
        name,
        dtype=DTYPES[config.dtype],
        deterministic=config.deterministic,
        faults=ActiveFaults.of(config.faults),
        experts=ExpertOptions.of(config),
        ranks=ranks,
    )
