"""Reads an exported folder back into the training code: the bfloat16 weights, computed with in float32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from training.export import hub_tensors
from training.model import Model
from training.shapes import ModelShape


def shape_of(config: dict[str, Any]) -> ModelShape:
    """The shape that a `config.json` describes."""
    return ModelShape(
        num_layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        dense_width=config["intermediate_size"],
        expert_width=config["moe_intermediate_size"],
        num_heads=config["num_attention_heads"],
        num_kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        num_experts=config["num_experts"],
        top_k=config["num_experts_per_tok"],
        vocabulary=config["vocab_size"],
        max_positions=config["max_position_embeddings"],
        rope_theta=config["rope_theta"],
        norm_eps=config["rms_norm_eps"],
        balance=config["router_aux_loss_coef"],
    )


@torch.no_grad()
def import_model(folder: Path, device: str = "cpu") -> Model:
    """The model of a folder that `training.export` wrote, in evaluation mode."""
    shape = shape_of(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    model = Model(shape)
    stored = load_file(folder / "model.safetensors")
    # The yielded tensors are views of the model's weights.
    for name, place in hub_tensors(model):
        place.copy_(stored[name])
    return model.to(device).eval()
