"""A MoE layer over the ranks of a pipeline stage."""

from __future__ import annotations

from functools import partial

import torch

from moeinspect.errors import EngineError
from moeinspect.runtime.layers.context import ForwardContext
from moeinspect.runtime.layers.linear import Linear
from moeinspect.runtime.layers.moe import MoELayer
from moeinspect.runtime.layers.spread_experts import SpreadExperts
from moeinspect.runtime.layers.tiles import pad_rows, pad_to
from moeinspect.runtime.parallel.communicator import Communicator
from moeinspect.runtime.parallel.rows import GatheredRows
from moeinspect.runtime.topk.backend import LayerExperts, MoEBackend, TokenRouter, TopKOutput
from moeinspect.runtime.topk.config import TopKConfig


class SpreadMoELayer(MoELayer):
    """Routes the rows of all data-parallel ranks, as far as they stand on its tensor-parallel rank.

    These rows are gathered first, so a rank captures those of other data-parallel ranks, too, as upstream
    does with data-parallel attention. `spread` are the experts, behind their placement if there is one.
    """

    def __init__(
        self,
        layer_id: int,
        config: TopKConfig,
        router: Linear,
        experts: LayerExperts,
        *,
        spread: SpreadExperts,
        ranks: Communicator,
        tile: int | None,
        hash_table: torch.Tensor | None = None,
        captures_after_map: bool = False,
    ) -> None:
        super().__init__(
            layer_id, config, router, experts, hash_table=hash_table, captures_after_map=captures_after_map
        )
        self._spread = spread
        self._ranks = ranks
        self._tile = tile

    def __call__(self, x: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """[padded n, H] to [padded n, H] of this rank's own rows; padding comes back as zeros."""
        return context.launch("experts", partial(self._launched, self._backend()), x, context)

    def run_idle(self, rows: GatheredRows, nothing: torch.Tensor) -> None:
        """Takes part in the layer for the sake of other ranks' rows; `nothing` [0, H]."""
        self._exchange(self._backend(), nothing, torch.zeros(0, dtype=torch.int64), rows)

    def _backend(self) -> MoEBackend | TokenRouter:
        if self._topk is None:
            raise EngineError(f"layer {self.layer_id}: the top-k backend was never initialised")
        return self._topk

    def _launched(
        self, backend: MoEBackend | TokenRouter, x: torch.Tensor, context: ForwardContext
    ) -> torch.Tensor:
        rows = context.gathered
        if rows is None:  # a graph is being captured: nobody else is there
            return torch.zeros_like(x)
        return pad_to(self._exchange(backend, x, context.input_ids, rows), x.shape[0])

    def _exchange(
        self,
        backend: MoEBackend | TokenRouter,
        x: torch.Tensor,
        token_ids: torch.Tensor,
        rows: GatheredRows,
    ) -> torch.Tensor:
        """Outputs [n, H] for the n real rows of this rank's `x`, whose tokens `token_ids` holds."""
        place = self._ranks.place
        n, own = len(rows.shard(place.dp, place.tp)), rows.among_gathered(place.dp, place.tp)
        gathered, token_ids = self._gather(x[:n], token_ids[:n], rows.dp_counts(place.tp))
        self._spread.begin(rows)
        if gathered.shape[0] == 0:
            return self._experts(gathered, _no_choices(self.topk_config))
        padded = gathered if self._tile is None else pad_rows(gathered, self._tile)
        logits = self._router(padded)[: gathered.shape[0]]
        return self._run_backend(backend, gathered, logits, token_ids)[own]

    def _gather(
        self, x: torch.Tensor, token_ids: torch.Tensor, counts: list[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows of all data-parallel ranks; their tokens only where the layer routes by them."""
        if not self.routes_by_token:
            return self._ranks.dp.all_gather_rows(x, counts), token_ids
        x, token_ids = self._ranks.dp.all_gather_packed([x, token_ids], counts)
        return x, token_ids


def _no_choices(config: TopKConfig) -> TopKOutput:
    width = config.top_k + config.num_fused_shared_experts
    return TopKOutput(torch.zeros(0, width, dtype=torch.int32), torch.zeros(0, width))
