"""Attention whose heads are spread over tensor-parallel ranks."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from moeinspect.runtime.layers.attention_plan import HeadLayout
from moeinspect.runtime.layers.context import ForwardContext
from moeinspect.runtime.layers.rotary import RotaryEmbedding, apply_rotary
from moeinspect.runtime.layers.tiles import pad_to
from moeinspect.runtime.models.qwen3_moe import Attention, attend
from moeinspect.runtime.parallel.communicator import Communicator


@dataclass(frozen=True, slots=True)
class HeadExchangeAttention(Attention):
    """Projections of own rows with whole weights, attention of all rows with own heads: no bit changes.

    Queries, keys and values go from the rank of their row to the rank of their head, and what was attended
    goes back, as in sequence parallelism by all-to-all (DeepSpeed-Ulysses, arXiv 2309.14509). `heads` are
    all heads, `own_heads` those that this rank keeps keys and values of.
    """

    own_heads: HeadLayout
    ranks: Communicator

    def _attend(self, qk: torch.Tensor, qkv: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """[padded n, Hq * D] of own rows; padding comes back as zeros."""
        rows, tp, heads, own = context.gathered, self.ranks.tp, self.heads, self.own_heads
        N, D = context.batch.num_rows, heads.head_dim
        if rows is None or N == 0:
            return qkv.new_zeros(qk.shape[0], heads.num_heads * D)
        counts = rows.tp_counts(self.ranks.place.dp)
        n = counts[tp.index]
        by_kind = (
            qk[:n, : heads.num_heads],
            qk[:n, heads.num_heads :],
            qkv.view(qkv.shape[0], -1, D)[:n, heads.num_heads + heads.num_kv_heads :],
        )
        # [n, tp, heads, D]: rank after rank, each with its own queries, keys and values.
        by_rank = torch.cat(
            [kind.reshape(n, tp.size, kind.shape[1] // tp.size, D) for kind in by_kind], dim=2
        )
        to_heads = by_rank.transpose(0, 1).flatten(0, 1)
        mine = tp.all_to_all(to_heads, [n] * tp.size, counts)
        queries, keys, values = _by_kind(mine, own)
        attended = attend(self.layer_id, own, queries.contiguous(), keys, values, context)
        back = tp.all_to_all(attended, counts, [n] * tp.size)
        return pad_to(
            back.view(tp.size, n, back.shape[1]).transpose(0, 1).reshape(n, heads.num_heads * D), qk.shape[0]
        )


@dataclass(frozen=True, slots=True)
class ColumnRowAttention(Attention):
    """The ordinary way, as Megatron's with sequence parallelism (Korthikanti et al. 2022, arXiv 2205.05198).

    All rows are gathered; `qkv` has the columns of own heads, `output` the matching rows of the transposed
    weight, so that its results are partial sums, which are reduced and scattered to the ranks of the rows.
    `heads` are those of this rank; `output_bias` [H] is added once.
    """

    ranks: Communicator
    rotary: RotaryEmbedding
    output_bias: torch.Tensor | None

    def __call__(self, x: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """[padded n, H] to [padded n, H] of own rows; stores keys and values of all rows for own heads."""
        return context.launch("attention_output", self._over_all_rows, x, context)

    def _over_all_rows(self, x: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        rows, tp, batch = context.gathered, self.ranks.tp, context.batch
        if rows is None or batch.num_rows == 0:
            return torch.zeros_like(x)
        counts = rows.tp_counts(self.ranks.place.dp)
        qkv = self.qkv(tp.all_gather_rows(x[: counts[tp.index]], counts))
        cos, sin = self.rotary.tables(batch.positions, int(batch.positions.max()) + 1)
        heads = self.heads
        q, k, v = _by_kind(qkv.view(batch.num_rows, -1, heads.head_dim), heads)
        qk = apply_rotary(self.qk_norm(torch.cat([q, k], dim=1)), cos, sin)
        queries, keys = qk[:, : heads.num_heads], qk[:, heads.num_heads :]
        attended = attend(self.layer_id, heads, queries, keys, v, context)
        own = tp.reduce_scatter_rows(self.output(attended), counts)
        return pad_to(own if self.output_bias is None else own + self.output_bias, x.shape[0])


def _by_kind(qkv: torch.Tensor, heads: HeadLayout) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values of `qkv` [n, Hq + 2 Hkv, D]."""
    return torch.split(qkv, [heads.num_heads, heads.num_kv_heads, heads.num_kv_heads], dim=1)
