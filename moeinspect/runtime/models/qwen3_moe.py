"""Qwen3-MoE: decoder layers of grouped-query attention with per-head norms, and experts or a dense MLP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from moeinspect.runtime.faults import NO_FAULTS, ActiveFaults
from moeinspect.runtime.forward_batch import ForwardBatch, ForwardOutput
from moeinspect.runtime.layers.attention import plain_attention, tiled_attention
from moeinspect.runtime.layers.attention_plan import AttentionPlan, HeadLayout, plan_attention
from moeinspect.runtime.layers.context import ForwardContext
from moeinspect.runtime.layers.linear import Linear
from moeinspect.runtime.layers.mlp import DenseMLP
from moeinspect.runtime.layers.moe import MoELayer
from moeinspect.runtime.layers.norm import RMSNorm
from moeinspect.runtime.layers.placement import ExpertPlacement
from moeinspect.runtime.layers.rotary import RotaryEmbedding, apply_rotary
from moeinspect.runtime.layers.shared_experts import SharedExpert
from moeinspect.runtime.layers.tiles import pad_rows, pad_to
from moeinspect.runtime.memory.kv_cache import KVCache
from moeinspect.runtime.models.config import ModelConfig
from moeinspect.runtime.topk.registry import backend_factory, hash_router_factory


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
        qkv = context.launch("qkv", self.qkv, x)
        qk = context.launch("qk", self._rotate, qkv, context.cos, context.sin)
        attended = context.launch("attended", self._attend, qk, qkv, context)
        return context.launch("attention_output", self.output, attended)

    def _rotate(self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Normed and rotated queries, then keys [padded N, Hq + Hkv, D]."""
        heads = self.heads
        qk = qkv.view(qkv.shape[0], -1, heads.head_dim)[:, : heads.num_heads + heads.num_kv_heads]
        return apply_rotary(self.qk_norm(qk.contiguous()), cos, sin)

    def _attend(self, qk: torch.Tensor, qkv: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """[padded N, Hq * D]; padding has neither keys nor queries, and comes back as zeros."""
        N, heads = context.batch.num_rows, self.heads
        padding = qkv.new_zeros(qk.shape[0] - N, heads.num_heads * heads.head_dim)
        if N == 0:
            return padding
        queries, keys = qk[:N, : heads.num_heads], qk[:N, heads.num_heads :]
        values = qkv[:N].view(N, -1, heads.head_dim)[:, heads.num_heads + heads.num_kv_heads :]
        attended = attend(self.layer_id, heads, queries, keys, values, context)
        return attended if qk.shape[0] == N else torch.cat([attended, padding])


def attend(
    layer_id: int,
    heads: HeadLayout,
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    context: ForwardContext,
) -> torch.Tensor:
    """Stores `keys` and `values` [N, Hkv, D] of a batch's rows; `queries` [N, Hq, D] attend: [N, Hq * D]."""
    kv = context.kv
    kv.store(layer_id, context.batch.out_slots, keys, values)
    if context.plan is None:
        return plain_attention(queries, kv.keys(layer_id), kv.values(layer_id), context.batch, heads)
    return tiled_attention(queries, kv.keys(layer_id), kv.values(layer_id), context.plan, heads)


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Norm, attention, norm, experts or dense MLP, with the residual stream around both."""

    input_norm: RMSNorm
    attention: Attention
    post_attention_norm: RMSNorm
    mlp: MoELayer | DenseMLP
    shared_expert: SharedExpert | None = None

    def __call__(self, x: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """[padded N, H] to [padded N, H]."""
        attended = self.attention(context.launch("normed", self.input_norm, x), context)
        return self.after_attention(x, attended, context)

    def after_attention(
        self, x: torch.Tensor, attended: torch.Tensor, context: ForwardContext
    ) -> torch.Tensor:
        """The rest of the layer: adds the attention's output to the residual `x`, then the MLP's."""
        launch = context.launch
        x = launch("residual", torch.add, x, attended)
        normed = launch("normed", self.post_attention_norm, x)
        if isinstance(self.mlp, MoELayer):
            output = self.mlp(normed, context)
        else:
            output = launch("dense", self.mlp, normed)
        if self.shared_expert is not None:
            output = launch("experts", torch.add, output, launch("shared", self.shared_expert, normed))
        return launch("residual", torch.add, x, output)


class Qwen3MoeForCausalLM:
    """A loaded model.

    `tile` is the number of rows of a tile in the layers, `head_tile` in the final norm and `lm_head`; both
    are None in the ordinary mode. `placement` is that of a target with redundant experts. `kept_layers` are
    the numbers of layers after which hidden states are kept for a draft head.
    """

    input_hidden_size = 0
    """Width of the hidden states that a forward reads beside its tokens."""

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
        placement: ExpertPlacement | None = None,
    ) -> None:
        self.config = config
        self.dtype = embedding.dtype
        self._embedding = embedding
        self._layers = layers
        self._norm = norm
        self._lm_head = lm_head
        self.tile = tile
        self._head_tile = head_tile
        self.placement = placement
        self.kept_layers: tuple[int, ...] = ()
        self._heads = HeadLayout(config.num_attention_heads, config.num_key_value_heads, config.head_dim)
        self._rotary = RotaryEmbedding(config.head_dim, config.rope_theta, self.dtype)

    def layers_with_topk(self) -> list[MoELayer]:
        """The MoE layers, in order."""
        return [layer.mlp for layer in self._layers if isinstance(layer.mlp, MoELayer)]

    def init_topk_backend(self, name: str, faults: ActiveFaults = NO_FAULTS) -> None:
        """Builds the top-k backend of every MoE layer from the layer's present `topk_config`."""
        make = backend_factory(name, faults)
        for layer in self.layers_with_topk():
            table = layer.hash_table
            layer.init_topk_backend(make if table is None else hash_router_factory(name, table, faults))

    def forward(self, batch: ForwardBatch, kv: KVCache) -> torch.Tensor:
        """Logits [len(batch.logit_rows), V] float32; see `run`."""
        return self.run(batch, kv).logits

    @torch.no_grad()
    def run(self, batch: ForwardBatch, kv: KVCache) -> ForwardOutput:
        """Computes the rows of `batch`; stores their keys and values under `batch.out_slots`."""
        if batch.num_rows == 0:
            return self.no_output(batch)
        own, padded = self.own_rows(batch.num_rows), self.padded(batch.num_rows)
        cos, sin = self.rotary_tables(batch)
        input_ids = pad_to(batch.input_ids[own], padded)
        context = ForwardContext(
            kv,
            pad_to(cos[own], padded),
            pad_to(sin[own], padded),
            input_ids,
            batch=batch,
            plan=None,
            num_rows=0,
            input_hidden=None if batch.input_hidden is None else pad_to(batch.input_hidden, padded),
        )
        self.begin(context, batch, batch.num_rows)
        x = self.run_layers(input_ids, context)
        return self.output(x, context, slots=batch.out_slots)

    def begin(self, context: ForwardContext, batch: ForwardBatch, num_rows: int) -> None:
        """Sets what kernels read of a batch; `num_rows` of its rows, padding perhaps included, are routed."""
        context.batch = batch
        context.plan = self.attention_plan(batch)
        context.num_rows = num_rows

    def run_idle(self, batch: ForwardBatch) -> None:
        """Takes part in a forward in which other ranks alone have rows; `batch` has none."""

    def output(
        self, x: torch.Tensor, context: ForwardContext, *, slots: torch.Tensor, static: bool = False
    ) -> ForwardOutput:
        """What a forward hands back that ended with the hidden states `x` [padded N, H]."""
        return ForwardOutput(
            self.logits(x, context.batch.logit_rows),
            slots=slots,
            static=static,
            hidden=self.kept_hidden(context),
        )

    def no_output(self, batch: ForwardBatch) -> ForwardOutput:
        """What a forward without rows hands back."""
        nothing = torch.zeros(0, len(self.kept_layers) * self.config.hidden_size, dtype=self.dtype)
        hidden = nothing if self.kept_layers else None
        return ForwardOutput(torch.zeros(0, self.config.vocab_size), slots=batch.out_slots, hidden=hidden)

    def keep_hidden(self, layers: tuple[int, ...]) -> None:
        """Has forwards hand back the hidden states after so many layers each; set before graphs are captured.

        Mirrors `set_eagle3_layers_to_capture` of SGLang's models.
        """
        self.kept_layers = layers

    def kept_hidden(self, context: ForwardContext) -> torch.Tensor | None:
        """The kept hidden states of a forward that ran, side by side [N, len(kept_layers) * H]."""
        kept = [hidden[: context.batch.num_rows] for hidden in context.kept_hidden]
        return torch.cat(kept, dim=1) if kept else None

    def run_layers(self, input_ids: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """Embedding and layers: `input_ids` [padded N] to hidden states [padded N, H].

        Everything between the inputs of a forward and its logits is a launch, so that a graph can be
        captured from it.
        """
        x = self._first_hidden(input_ids, context)
        for layer in self._layers:
            x = layer(x, context)
            self._keep(layer.attention.layer_id + 1, x, context)
        return x

    def _first_hidden(self, input_ids: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        return context.launch("residual", self._embedding.index_select, 0, input_ids)

    def _keep(self, number: int, x: torch.Tensor, context: ForwardContext) -> None:
        if number in self.kept_layers:
            context.kept_hidden.append(context.launch(f"kept {number}", torch.clone, x))

    def logits(self, hidden: torch.Tensor, logit_rows: torch.Tensor) -> torch.Tensor:
        """Logits [n, V] float32 of the rows `logit_rows` [n] of `hidden` [padded N, H]."""
        if logit_rows.shape[0] == 0:
            return torch.zeros(0, self.config.vocab_size)
        wanted = hidden[logit_rows]
        wanted = self._norm(wanted if self._head_tile is None else pad_rows(wanted, self._head_tile))
        return self._lm_head(wanted)[: logit_rows.shape[0]].float()

    def own_rows(self, num_rows: int) -> slice:
        """Which of the batch's rows this rank computes outside attention: all, where it is alone."""
        return slice(0, num_rows)

    def padded(self, num_rows: int) -> int:
        """So many of its own rows, rounded up to whole tiles."""
        return num_rows if self.tile is None else num_rows + -num_rows % self.tile

    def rotary_tables(self, batch: ForwardBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and signed sines [N, 1, head_dim] of the batch's positions."""
        return self._rotary.tables(batch.positions, int(batch.positions.max()) + 1)

    def attention_plan(self, batch: ForwardBatch) -> AttentionPlan | None:
        """The attention's metadata of this batch, worked out on the host before the layers run."""
        return None if self.tile is None else plan_attention(batch, self._heads)
