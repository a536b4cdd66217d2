"""Qwen3-MoE: decoder layers of grouped-query attention with per-head norms, and experts or a dense MLP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from moeinspect.runtime.forward_batch import ForwardBatch, ForwardOutput
from moeinspect.runtime.layers.attention import plain_attention, tiled_attention
from moeinspect.runtime.layers.attention_plan import AttentionPlan, HeadLayout, plan_attention
from moeinspect.runtime.layers.linear import Linear
from moeinspect.runtime.layers.mlp import DenseMLP
from moeinspect.runtime.layers.moe import MoELayer
from moeinspect.runtime.layers.norm import RMSNorm
from moeinspect.runtime.layers.rotary import RotaryEmbedding, apply_rotary
from moeinspect.runtime.layers.tiles import pad_rows
from moeinspect.runtime.memory.kv_cache import KVCache
from moeinspect.runtime.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """What all layers of one forward share; rows are padded from N to whole tiles.

    `cos` and `sin` [padded, 1, head_dim]; `plan` is None in the ordinary, not bit-exact mode.
    """

    batch: ForwardBatch
    kv: KVCache
    cos: torch.Tensor
    sin: torch.Tensor
    plan: AttentionPlan | None


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention of one layer: fused q, k, v projection, per-head norms, rotary embedding, output."""

    layer_id: int
    heads: HeadLayout
    qkv: Linear
    qk_norm: RMSNorm
    output: Linear

    def __call__(self, x: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """[padded N, H] to [padded N, H]; stores keys and values of the real rows."""
        N, heads = context.batch.num_rows, self.heads
        qkv = self.qkv(x).view(x.shape[0], -1, heads.head_dim)
        qk = self.qk_norm(qkv[:, : heads.num_heads + heads.num_kv_heads].contiguous())
        qk = apply_rotary(qk, context.cos, context.sin)
        queries, keys = qk[:N, : heads.num_heads], qk[:N, heads.num_heads :]
        values = qkv[:N, heads.num_heads + heads.num_kv_heads :]
        context.kv.store(self.layer_id, context.batch.out_slots, keys, values)
        attended = self._attend(queries, context)
        if x.shape[0] > N:
            attended = torch.cat([attended, attended.new_zeros(x.shape[0] - N, attended.shape[1])])
        return self.output(attended)

    def _attend(self, queries: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        keys, values = context.kv.keys(self.layer_id), context.kv.values(self.layer_id)
        if context.plan is None:
            return plain_attention(queries, keys, values, context.batch, self.heads)
        return tiled_attention(queries, keys, values, context.plan, self.heads)


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Norm, attention, norm, experts or dense MLP, with the residual stream around both."""

    input_norm: RMSNorm
    attention: Attention
    post_attention_norm: RMSNorm
    mlp: MoELayer | DenseMLP

    def __call__(self, x: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """[padded N, H] to [padded N, H]."""
        x = x + self.attention(self.input_norm(x), context)
        hidden = self.post_attention_norm(x)
        if isinstance(self.mlp, MoELayer):
            return x + self.mlp(hidden, context.batch.num_rows)
        return x + self.mlp(hidden)


class Qwen3MoeForCausalLM:
    """A loaded model.

    `tile` is the number of rows of a tile in the layers, `head_tile` in the final norm and `lm_head`; both
    are None in the ordinary mode.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        embedding: torch.Tensor,
        layers: list[DecoderLayer],
        norm: RMSNorm,
        lm_head: Callable[[torch.Tensor], torch.Tensor],
        tile: int | None,
        head_tile: int | None,
    ) -> None:
        self.config = config
        self.dtype = embedding.dtype
        self._embedding = embedding
        self._layers = layers
        self._norm = norm
        self._lm_head = lm_head
        self._tile = tile
        self._head_tile = head_tile
        self._heads = HeadLayout(config.num_attention_heads, config.num_key_value_heads, config.head_dim)
        self._rotary = RotaryEmbedding(config.head_dim, config.rope_theta, self.dtype)

    def layers_with_topk(self) -> list[MoELayer]:
        """The MoE layers, in order."""
        return [layer.mlp for layer in self._layers if isinstance(layer.mlp, MoELayer)]

    def init_topk_backend(self, name: str) -> None:
        """Builds the top-k backend of every MoE layer from the layer's present `topk_config`."""
        for layer in self.layers_with_topk():
            layer.init_topk_backend(name)

    def forward(self, batch: ForwardBatch, kv: KVCache) -> torch.Tensor:
        """Logits [len(batch.logit_rows), V] float32; see `run`."""
        return self.run(batch, kv).logits

    @torch.no_grad()
    def run(self, batch: ForwardBatch, kv: KVCache) -> ForwardOutput:
        """Computes the rows of `batch`; stores their keys and values under `batch.out_slots`."""
        if batch.num_rows == 0:
            return ForwardOutput(torch.zeros(0, self.config.vocab_size))
        context = self._context(batch, kv)
        x = _pad(self._embedding[batch.input_ids], self._tile)
        for layer in self._layers:
            x = layer(x, context)
        return ForwardOutput(self._logits(x, batch.logit_rows))

    def _logits(self, x: torch.Tensor, logit_rows: torch.Tensor) -> torch.Tensor:
        if logit_rows.shape[0] == 0:
            return torch.zeros(0, self.config.vocab_size)
        wanted = self._norm(_pad(x[logit_rows], self._head_tile))
        return self._lm_head(wanted)[: logit_rows.shape[0]].float()

    def _context(self, batch: ForwardBatch, kv: KVCache) -> ForwardContext:
        limit = int(batch.positions.max()) + 1
        cos, sin = self._rotary.tables(batch.positions, limit)
        plan = None if self._tile is None else plan_attention(batch, self._heads)
        return ForwardContext(batch, kv, _pad(cos, self._tile), _pad(sin, self._tile), plan)


def _pad(x: torch.Tensor, tile: int | None) -> torch.Tensor:
    return x if tile is None else pad_rows(x, tile)
