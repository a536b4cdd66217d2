"""A Qwen3-MoE in plain torch, laid out for training: all experts of a layer are one wide SwiGLU.

Every expert computes every token; the router's weights, zero for the experts not chosen, scale what enters
the down projection. At this size that is faster than gathering tokens by expert, and it is the same function.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

from training.shapes import ModelShape


@dataclass(frozen=True, slots=True)
class Routing:
    """What one router did: `logits` [N, E] float32, and which experts were `chosen` [N, E] bool."""

    logits: torch.Tensor
    chosen: torch.Tensor


class RMSNorm(nn.Module):
    """weight * (x / rms(x)); statistics in float32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self._eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., width] to [..., width], in x's dtype."""
        x32 = x.float()
        normed = x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + self._eps)
        return (normed * self.weight.float()).to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention with per-head norms before the rotary embedding."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        heads, kv_heads, width = shape.num_heads, shape.num_kv_heads, shape.head_dim
        self.qkv = nn.Linear(shape.hidden, (heads + 2 * kv_heads) * width, bias=False)
        self.q_norm = RMSNorm(width, shape.norm_eps)
        self.k_norm = RMSNorm(width, shape.norm_eps)
        self.output = nn.Linear(heads * width, shape.hidden, bias=False)

    def project(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries [B, Hq, T, D], keys and values [B, Hkv, T, D] of x [B, T, H]."""
        shape = self.shape
        sizes = (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)
        qkv = self.qkv(x).unflatten(-1, (sum(sizes), shape.head_dim)).transpose(1, 2)
        queries, keys, values = qkv.split(sizes, dim=1)
        queries = rotate(self.q_norm(queries), cos, sin)
        return queries, rotate(self.k_norm(keys), cos, sin), values

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """[B, T, H] to [B, T, H], each position seeing itself and those before it."""
        queries, keys, values = self.project(x, cos, sin)
        group = self.shape.num_heads // self.shape.num_kv_heads
        keys, values = (t.repeat_interleave(group, dim=1) for t in (keys, values))
        attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return self.finish(attended)

    def finish(self, attended: torch.Tensor) -> torch.Tensor:
        """Heads [B, Hq, T, D] back to [B, T, H]."""
        result: torch.Tensor = self.output(attended.transpose(1, 2).flatten(2))
        return result


class DenseMLP(nn.Module):
    """SwiGLU; `gate_up` holds gate, then up."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gate_up = nn.Linear(shape.hidden, 2 * shape.dense_width, bias=False)
        self.down = nn.Linear(shape.dense_width, shape.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        """[B, T, H] to [B, T, H]; no routing."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up), None


class MoE(nn.Module):
    """Softmax router, top-k, renormalised; experts stand side by side in `gate_up` and `down`."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        wide = shape.num_experts * shape.expert_width
        self.router = nn.Linear(shape.hidden, shape.num_experts, bias=False)
        self.gate_up = nn.Linear(shape.hidden, 2 * wide, bias=False)
        self.down = nn.Linear(wide, shape.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Routing]:
        """[B, T, H] to [B, T, H] and what the router chose."""
        routing, weights = self._route(x.flatten(0, 1))
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        hidden = (F.silu(gate) * up).unflatten(-1, (self.shape.num_experts, self.shape.expert_width))
        scaled = hidden * weights.view(*x.shape[:2], -1, 1).to(hidden.dtype)
        return self.down(scaled.flatten(2)), routing

    def _route(self, x: torch.Tensor) -> tuple[Routing, torch.Tensor]:
        """The choice for x [N, H], and weights [N, E] that are zero where an expert was not chosen."""
        with torch.autocast(x.device.type, enabled=False):
            logits = F.linear(x.float(), self.router.weight.float())
        chosen = largest(logits, self.shape.top_k)
        weights = torch.where(chosen, logits.softmax(dim=-1), 0.0)
        return Routing(logits, chosen), weights / weights.sum(dim=-1, keepdim=True)


def largest(logits: torch.Tensor, k: int) -> torch.Tensor:
    """Which k of logits [N, E] are the largest, as a mask; k rounds of maxima, which a compiler can fuse."""
    left = logits.detach()
    for _ in range(k):
        left = left.masked_fill(left == left.amax(dim=-1, keepdim=True), -torch.inf)
    return left == -torch.inf


class Layer(nn.Module):
    """Norm, attention, norm, MLP or experts, around a residual stream."""

    def __init__(self, shape: ModelShape, index: int) -> None:
        super().__init__()
        self.input_norm = RMSNorm(shape.hidden, shape.norm_eps)
        self.attention = Attention(shape)
        self.post_norm = RMSNorm(shape.hidden, shape.norm_eps)
        self.mlp: DenseMLP | MoE = MoE(shape) if index in shape.moe_layers else DenseMLP(shape)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, Routing | None]:
        """[B, T, H] to [B, T, H] and the routing of a layer with experts."""
        x = x + self.dropout(self.attention(self.input_norm(x), cos, sin))
        added, routing = self.mlp(self.post_norm(x))
        return x + self.dropout(added), routing


class Model(nn.Module):
    """A decoder; weights are drawn from `seed`."""

    def __init__(self, shape: ModelShape, seed: int = 0) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape, index) for index in range(shape.num_layers))
        self.dropout = nn.Dropout(shape.dropout)
        self.norm = RMSNorm(shape.hidden, shape.norm_eps)
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)
        self._draw(seed)

    def forward(self, ids: torch.Tensor, skip: int | None = None) -> tuple[torch.Tensor, list[Routing]]:
        """Logits [B, T, V] of ids [B, T], and the routing of every MoE layer; layer `skip` is left out."""
        positions = torch.arange(ids.shape[1], device=ids.device)
        cos, sin = rotary_tables(self.shape, positions)
        x = self.dropout(self.embedding(ids))
        routings = []
        for index, layer in enumerate(self.layers):
            if index == skip:
                continue
            x, routing = layer(x, cos, sin)
            if routing is not None:
                routings.append(routing)
        return self.head(self.norm(x)), routings

    def decoder_layers(self) -> list[Layer]:
        """The layers, typed."""
        return cast(list[Layer], list(self.layers))

    @torch.no_grad()
    def _draw(self, seed: int) -> None:
        """Normal weights: 1 / sqrt(fan-in), smaller where they write to the residual stream or to logits."""
        generator = torch.Generator().manual_seed(seed)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                weight.copy_(torch.randn(weight.shape, generator=generator) * self._std(name, weight))

    def _std(self, name: str, weight: torch.Tensor) -> float:
        if name == "embedding.weight":
            return 0.5
        if name == "head.weight":
            return 0.02
        if name.endswith(("output.weight", "down.weight")):
            return 0.1 / math.sqrt(2 * self.shape.num_layers)
        return float(weight.shape[1] ** -0.5)


def rotary_tables(shape: ModelShape, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and signed sines [T, D] of positions [T], in transformers' half-split layout."""
    exponents = torch.arange(0, shape.head_dim, 2, device=positions.device).float() / shape.head_dim
    angles = positions.float()[:, None] * (1.0 / shape.rope_theta**exponents)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of x [B, heads, T, D] with tables [T, D]."""
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat([second, first], dim=-1) * sin).to(x.dtype)


def balance_loss(routings: list[Routing], num_experts: int) -> torch.Tensor:
    """The load-balancing loss of the Qwen-MoE family (Switch Transformers, arXiv 2101.03961, eq. 4 to 6).

    E * sum over experts of (choices that fell on it, a token) * (its mean probability): K if balanced. Taken
    for each layer alone and averaged, so that no layer can make up for another.
    """
    total = torch.zeros((), device=routings[0].logits.device)
    for routing in routings:
        chosen = routing.chosen.float().mean(dim=0)
        total = total + num_experts * (chosen * routing.logits.softmax(dim=-1).mean(dim=0)).sum()
    return total / len(routings)
