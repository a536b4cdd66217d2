"""Builds one rank's part of a model, and reads no other weights than it needs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from moeinspect.runtime.faults import NO_FAULTS, ActiveFaults
from moeinspect.runtime.layers.experts import Experts
from moeinspect.runtime.layers.linear import Linear
from moeinspect.runtime.layers.moe import MoELayer
from moeinspect.runtime.layers.norm import RMSNorm
from moeinspect.runtime.layers.placement import PLAIN_EXPERTS, ExpertOptions
from moeinspect.runtime.layers.rotary import RotaryEmbedding
from moeinspect.runtime.layers.spread_experts import SpreadExperts
from moeinspect.runtime.layers.spread_moe import SpreadMoELayer
from moeinspect.runtime.models.assemble import Assembler
from moeinspect.runtime.models.config import ModelConfig
from moeinspect.runtime.models.qwen3_moe import Attention
from moeinspect.runtime.models.qwen3_moe_rank import Qwen3MoeRank
from moeinspect.runtime.models.spread_attention import ColumnRowAttention, HeadExchangeAttention
from moeinspect.runtime.models.weights import WeightSource
from moeinspect.runtime.parallel.communicator import Communicator
from moeinspect.runtime.parallel.shard import ModelShard, split
from moeinspect.runtime.topk.backend import LayerExperts


def assemble_rank(
    config: ModelConfig,
    source: WeightSource,
    ranks: Communicator,
    *,
    dtype: torch.dtype,
    deterministic: bool,
    faults: ActiveFaults = NO_FAULTS,
    experts: ExpertOptions = PLAIN_EXPERTS,
) -> Qwen3MoeRank:
    """Reads this rank's weights; the source must hold them in their expected shapes.

    Raises:
        UsageError: the model cannot be spread over so many ranks.
    """
    ModelShard(ranks.layout, ranks.place).check(config)
    return _RankAssembler(config, source, ranks, dtype, deterministic, faults, experts).rank_model()


class _RankAssembler(Assembler):
    def __init__(
        self,
        config: ModelConfig,
        source: WeightSource,
        ranks: Communicator,
        dtype: torch.dtype,
        deterministic: bool,
        faults: ActiveFaults,
        options: ExpertOptions,
    ) -> None:
        super().__init__(config, source, dtype, deterministic, faults, options)
        self._ranks = ranks
        self._shard = ModelShard(ranks.layout, ranks.place)
        self._own_heads = self._shard.heads(config)

    def rank_model(self) -> Qwen3MoeRank:
        shard = self._shard
        parts = self._parts(
            shard.layers(self._config.num_hidden_layers),
            has_embedding=shard.is_first_stage,
            has_head=shard.has_head,
        )
        return Qwen3MoeRank(self._config, ranks=self._ranks, **parts)

    def _attention(self, layer: int, prefix: str) -> Attention:
        if self._tile is None:
            return self._column_row_attention(layer, prefix)
        whole = super()._attention(layer, prefix)
        return HeadExchangeAttention(
            layer_id=layer,
            heads=whole.heads,
            qkv=whole.qkv,
            qk_norm=whole.qk_norm,
            output=whole.output,
            own_heads=self._own_heads,
            ranks=self._ranks,
        )

    def _column_row_attention(self, layer: int, prefix: str) -> Attention:
        """Own heads' columns of the projections, and the rows of the transposed output weight."""
        config, own, tp = self._config, self._own_heads, self._shard.place.tp
        widths = [own.num_heads * own.head_dim] + [own.num_kv_heads * own.head_dim] * 2
        with_bias = config.attention_bias
        weight, bias = [], []
        for name, width in zip("qkv", widths, strict=True):
            part = slice(tp * width, (tp + 1) * width)
            weight.append(self._read(f"{prefix}.{name}_proj.weight")[part])
            if with_bias:
                bias.append(self._read(f"{prefix}.{name}_proj.bias")[part])
        q_norm, k_norm = self._read(f"{prefix}.q_norm.weight"), self._read(f"{prefix}.k_norm.weight")
        norm = torch.cat([q_norm.expand(own.num_heads, -1), k_norm.expand(own.num_kv_heads, -1)])
        output = self._read(f"{prefix}.o_proj.weight")[:, tp * widths[0] : (tp + 1) * widths[0]]
        return ColumnRowAttention(
            layer_id=layer,
            heads=own,
            qkv=Linear(torch.cat(weight), torch.cat(bias) if with_bias else None, None),
            qk_norm=RMSNorm(norm, config.rms_norm_eps, None),
            output=Linear(output.contiguous(), None, None),
            ranks=self._ranks,
            rotary=RotaryEmbedding(config.head_dim, config.rope_theta, self._dtype),
            output_bias=self._read(f"{prefix}.o_proj.bias") if with_bias else None,
        )

    def _moe_layer(
        self, layer: int, prefix: str, experts: LayerExperts, held: Experts | SpreadExperts
    ) -> MoELayer:
        if not isinstance(held, SpreadExperts):
            raise TypeError("a rank's experts are spread")
        return SpreadMoELayer(
            layer,
            *self._routing(prefix),
            experts,
            spread=held,
            ranks=self._ranks,
            tile=self._tile,
            hash_table=self._hash_table(layer, prefix),
            captures_after_map=self._captures_after_map,
        )

    def _held_experts(self, prefix: str, expert_of_slot: Sequence[int]) -> SpreadExperts:
        slots_of_rank = self._slots_of_rank(len(expert_of_slot))
        own = slots_of_rank[self._shard.ep_index]
        held = self._experts(prefix, expert_of_slot[own.start : own.stop])
        return SpreadExperts(held, slots_of_rank, self._ranks, exact=self._tile is not None)

    def _slots_of_rank(self, num_slots: int) -> list[range]:
        return split(num_slots, self._shard.layout.ep)
