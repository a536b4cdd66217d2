"""Whether the package's runtime, transformers and the training code compute the same model."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from moeinspect.runtime.forward_batch import ForwardBatch, ForwardMode
from moeinspect.runtime.memory.kv_cache import KVCache, KVShape
from moeinspect.runtime.models.loader import load_model
from moeinspect.runtime.models.qwen3_moe import Qwen3MoeForCausalLM
from moeinspect.runtime.topk.backend import TopKOutput
from training.model import Model

Results = tuple[torch.Tensor, torch.Tensor]
"""Logits [T, V] and chosen experts [layers, T, E] as a mask."""


def runtime_results(folder: Path, rows: Sequence[Sequence[int]]) -> list[Results]:
    """What the package's runtime computes for rows of token ids, each in one chunk, in float32."""
    model = load_model(str(folder), dtype=torch.float32, deterministic=True)
    model.init_topk_backend("torch")
    chosen: dict[int, torch.Tensor] = {}
    for layer in model.layers_with_topk():
        _watch(layer, chosen)
    results = []
    for row in rows:
        logits = _forward(model, row)
        masks = [_mask(chosen[i], model.config.num_experts) for i in model.config.moe_layers]
        results.append((logits, torch.stack(masks)))
    return results


def _watch(layer: Any, chosen: dict[int, torch.Tensor]) -> None:  # noqa: ANN401 - a private part is wrapped
    select: Callable[[torch.Tensor], TopKOutput] = layer._topk.select

    def watched(router_logits: torch.Tensor) -> TopKOutput:
        output = select(router_logits)
        chosen[layer.layer_id] = output.ids
        return output

    layer._topk.select = watched


def _mask(ids: torch.Tensor, num_experts: int) -> torch.Tensor:
    return torch.zeros(ids.shape[0], num_experts, dtype=torch.bool).scatter(1, ids.long(), True)


def _forward(model: Qwen3MoeForCausalLM, row: Sequence[int]) -> torch.Tensor:
    config, count = model.config, len(row)
    shape = KVShape(
        config.num_hidden_layers, count + 1, config.num_key_value_heads, config.head_dim, model.dtype
    )
    slots = torch.arange(1, count + 1)
    batch = ForwardBatch(
        mode=ForwardMode.PREFILL,
        input_ids=torch.tensor(row),
        positions=torch.arange(count),
        out_slots=slots,
        row_request=torch.zeros(count, dtype=torch.int64),
        extend_lens=(count,),
        slot_table=slots[None],
        logit_rows=torch.arange(count),
    )
    return model.forward(batch, KVCache(shape))


@torch.no_grad()
def training_results(model: Model, rows: Sequence[Sequence[int]]) -> list[Results]:
    """What the training code computes."""
    results = []
    for row in rows:
        logits, routings = model(torch.tensor([list(row)]))
        results.append((logits[0], torch.stack([routing.chosen for routing in routings])))
    return results


@torch.no_grad()
def transformers_results(folder: Path, rows: Sequence[Sequence[int]]) -> list[Results] | None:
    """What transformers computes in float32; None where it is not installed."""
    try:
        transformers = importlib.import_module("transformers")
    except ImportError:
        return None
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    results = []
    for row in rows:
        output = model(torch.tensor([list(row)]), output_router_logits=True)
        E, K = model.config.num_experts, model.config.num_experts_per_tok
        chosen = [_mask(logits.view(-1, E).topk(K).indices, E) for logits in output.router_logits]
        results.append((output.logits[0], torch.stack(chosen)))
    return results


def differences(ours: Sequence[Results], theirs: Sequence[Results]) -> dict[str, Any]:
    """Cells compared, cells with another set of experts, and the largest difference of a logit."""
    cells = [(a[1] != b[1]).any(dim=-1) for a, b in zip(ours, theirs, strict=True)]
    logits = [float((a[0] - b[0]).abs().max()) for a, b in zip(ours, theirs, strict=True)]
    return {
        "cells": sum(part.numel() for part in cells),
        "other_sets": sum(int(part.sum()) for part in cells),
        "largest_logit_difference": max(logits),
    }
