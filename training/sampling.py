"""Text that the target writes by itself, for the draft to learn from: many rows at once, with cached keys."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from training.model import Layer, Model, rotary_tables


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows to be written: ids [B, T], of which each row keeps its first `given` [B] tokens, and their
    temperatures [B], 0 meaning the most likely token."""

    ids: torch.Tensor
    given: torch.Tensor
    temperature: torch.Tensor


class _Cache:
    """Keys and values [layers, B, Hkv, T, D] of the tokens so far."""

    def __init__(self, model: Model, rows: int, length: int, dtype: torch.dtype) -> None:
        shape, device = model.shape, model.head.weight.device
        size = (shape.num_layers, rows, shape.num_kv_heads, length, shape.head_dim)
        self.keys = torch.zeros(size, device=device, dtype=dtype)
        self.values = torch.zeros(size, device=device, dtype=dtype)


@torch.no_grad()
def continue_rows(model: Model, batch: Batch, generator: torch.Generator) -> torch.Tensor:
    """The rows of `batch`, written to their full length; [B, T].

    One position a step for all rows: a row takes its given token while it has one, else a sampled one.
    """
    ids = batch.ids.clone()
    rows, length = ids.shape
    dtype = torch.get_autocast_dtype(ids.device.type) if torch.is_autocast_enabled(ids.device.type) else None
    cache = _Cache(model, rows, length, dtype or torch.float32)
    cos, sin = rotary_tables(model.shape, torch.arange(length, device=ids.device))
    for position in range(length - 1):
        logits = _step(model, ids[:, position : position + 1], position, cache, cos, sin)
        picked = _pick(logits, batch.temperature, generator)
        following = ids[:, position + 1]
        ids[:, position + 1] = torch.where(position + 1 < batch.given, following, picked)
    return ids


def _step(
    model: Model, token: torch.Tensor, position: int, cache: _Cache, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    """Logits [B, V] after the tokens [B, 1] at one position."""
    x = model.embedding(token)
    for index, layer in enumerate(model.decoder_layers()):
        x = _layer_step(layer, x, position, cache.keys[index], cache.values[index], cos, sin)
    logits: torch.Tensor = model.head(model.norm(x))[:, 0].float()
    return logits


def _layer_step(
    layer: Layer,
    x: torch.Tensor,
    position: int,
    keys: torch.Tensor,
    values: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> torch.Tensor:
    here = slice(position, position + 1)
    queries, key, value = layer.attention.project(layer.input_norm(x), cos[here], sin[here])
    keys[:, :, here], values[:, :, here] = key, value
    # The query heads of a key head stand where queries of several positions would.
    folded = queries.to(keys.dtype).reshape(x.shape[0], keys.shape[1], -1, keys.shape[-1])
    attended = F.scaled_dot_product_attention(
        folded, keys[:, :, : position + 1], values[:, :, : position + 1]
    )
    attended = attended.reshape(queries.shape)
    x = x + layer.attention.finish(attended)
    added: torch.Tensor = layer.mlp(layer.post_norm(x))[0]
    return x + added


def _pick(logits: torch.Tensor, temperature: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Token ids [B]: the largest of logit + temperature * Gumbel noise, which draws from the softmax."""
    uniform = torch.rand(logits.shape, generator=generator, device=logits.device).clamp_(1e-10, 1 - 1e-7)
    return (logits - temperature[:, None] * torch.log(-torch.log(uniform))).argmax(dim=-1)
