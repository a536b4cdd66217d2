"""One rank's part of a Qwen3-MoE: layers of its stage, heads, rows and experts of its own."""

from __future__ import annotations

from collections.abc import Callable

import torch

from moeinspect.runtime.forward_batch import ForwardBatch, ForwardOutput
from moeinspect.runtime.layers.context import ForwardContext
from moeinspect.runtime.layers.norm import RMSNorm
from moeinspect.runtime.layers.placement import ExpertPlacement
from moeinspect.runtime.layers.spread_moe import SpreadMoELayer
from moeinspect.runtime.memory.kv_cache import KVCache
from moeinspect.runtime.models.config import ModelConfig
from moeinspect.runtime.models.qwen3_moe import DecoderLayer, Qwen3MoeForCausalLM
from moeinspect.runtime.parallel.communicator import Communicator
from moeinspect.runtime.parallel.rows import GatheredRows, shard_of, shard_size
from moeinspect.runtime.parallel.shard import ModelShard
from moeinspect.runtime.parallel.tags import HIDDEN, LOGITS, STAGE


class Qwen3MoeRank(Qwen3MoeForCausalLM):
    """The part of a model that one of several ranks has.

    All ranks of a data-parallel rank run the same batches in the same order; all of a stage run a forward
    together (`run_idle` where there are no rows), since its experts are common. Outside attention a rank
    computes its own rows. What a forward hands back comes together in the leader.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        ranks: Communicator,
        embedding: torch.Tensor,
        layers: list[DecoderLayer],
        norm: RMSNorm,
        lm_head: Callable[[torch.Tensor], torch.Tensor],
        tile: int | None,
        head_tile: int | None,
        placement: ExpertPlacement | None = None,
    ) -> None:
        """`embedding` and `lm_head` are empty where the shard has none."""
        super().__init__(
            config,
            embedding=embedding,
            layers=layers,
            norm=norm,
            lm_head=lm_head,
            tile=tile,
            head_tile=head_tile,
            placement=placement,
        )
        self._ranks = ranks
        self._shard = ModelShard(ranks.layout, ranks.place)
        self._heads = self._shard.heads(config)
        self._row_tile = tile or 1

    def own_rows(self, num_rows: int) -> slice:
        """Which of the batch's rows this rank computes outside attention."""
        rows = shard_of(num_rows, self._row_tile, self._ranks.layout.tp, self._ranks.place.tp)
        return slice(rows.start, rows.stop)

    def padded(self, num_rows: int) -> int:
        """Rows of each tensor-parallel rank, in whole tiles."""
        return shard_size(num_rows, self._row_tile, self._ranks.layout.tp)

    def begin(self, context: ForwardContext, batch: ForwardBatch, num_rows: int) -> None:
        """Sets what kernels read of a batch; padding is never routed here."""
        super().begin(context, batch, batch.num_rows)
        context.gathered = self._gathered(batch)

    def _gathered(self, batch: ForwardBatch) -> GatheredRows:
        layout = self._ranks.layout
        return GatheredRows(
            batch.dp_rows or (batch.num_rows,),
            batch.dp_requests or (batch.num_rows // batch.rows_per_request,),
            self._row_tile,
            layout.tp,
        )

    def run(self, batch: ForwardBatch, kv: KVCache) -> ForwardOutput:
        """See `Qwen3MoeForCausalLM.run`; every rank of the stage has to run a forward with this one."""
        if batch.num_rows == 0:
            self.run_idle(batch)
        return super().run(batch, kv)

    @torch.no_grad()
    def run_idle(self, batch: ForwardBatch) -> None:
        """Runs this rank's experts for the rows of other data-parallel ranks; `batch` has none."""
        nothing = torch.zeros(0, self.config.hidden_size, dtype=self.dtype)
        rows = self._gathered(batch)
        for layer in self.layers_with_topk():
            if isinstance(layer, SpreadMoELayer):
                layer.run_idle(rows, nothing)

    def run_layers(self, input_ids: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """The layers of this stage, from the stage before and to the next: [padded n, H]."""
        x = super().run_layers(input_ids, context)
        if not self._shard.is_last_stage:
            context.launch("passed on", self._pass_on, x, context)
        return x

    def _first_hidden(self, input_ids: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        if self._shard.is_first_stage:
            return super()._first_hidden(input_ids, context)
        return context.launch("residual", self._take_over, input_ids, context)

    def _take_over(self, input_ids: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        n, H = self._num_own(context), self.config.hidden_size
        x = torch.zeros(input_ids.shape[0], H, dtype=self.dtype)
        if n:
            x[:n] = self._ranks.replica.receive((n, H), self.dtype, self._ranks.stage_neighbour(-1), STAGE)
        return x

    def _pass_on(self, x: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        n = self._num_own(context)
        if n:
            self._ranks.replica.send(x[:n], self._ranks.stage_neighbour(1), STAGE)
        return x[:0]

    def _num_own(self, context: ForwardContext) -> int:
        """Real rows of this rank in the running forward; none while a graph is captured."""
        place = self._ranks.place
        return 0 if context.gathered is None else len(context.gathered.shard(place.dp, place.tp))

    def output(
        self, x: torch.Tensor, context: ForwardContext, *, slots: torch.Tensor, static: bool = False
    ) -> ForwardOutput:
        """Brings logits and kept hidden states to the leader."""
        logits = self._logits_of_last_stage(x, context)
        hidden = self._collected_hidden(context)
        if not self._ranks.is_leader:
            logits = torch.zeros(0, self.config.vocab_size)
        return ForwardOutput(logits, slots=slots, static=static, hidden=hidden, gathered=context.gathered)

    def _logits_of_last_stage(self, x: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """Logits [n, V] of the wanted rows, in the leader; elsewhere whatever there is."""
        ranks, shard, wanted = self._ranks, self._shard, context.batch.logit_rows
        logits = torch.zeros(0, self.config.vocab_size)
        if wanted.shape[0] == 0:
            return logits
        if shard.is_last_stage:
            rows = self._wanted_rows(x, wanted, context)
            if shard.has_head:
                logits = self.logits(rows, torch.arange(rows.shape[0]))
        if ranks.layout.pp == 1:
            return logits
        head = ranks.layout.ranks_where(dp=ranks.place.dp, pp=ranks.layout.pp - 1, tp=0)[0]
        if ranks.is_leader:
            shape = (wanted.shape[0], self.config.vocab_size)
            return ranks.replica.receive(shape, torch.float32, head, LOGITS)
        if ranks.rank == head:
            ranks.replica.send(logits, ranks.leader, LOGITS)
        return logits

    def _wanted_rows(self, x: torch.Tensor, wanted: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """Hidden states [n, H] of the rows `wanted` [n] of the batch, from the ranks that have them."""
        tp = self._ranks.tp
        if tp.size == 1:
            return x[wanted]
        owner = wanted // self.padded(context.batch.num_rows)
        order = torch.argsort(owner, stable=True)
        own = wanted[owner == tp.index] - tp.index * self.padded(context.batch.num_rows)
        result = x.new_empty(wanted.shape[0], x.shape[1])
        result[order] = tp.all_gather_rows(x[own], torch.bincount(owner, minlength=tp.size).tolist())
        return result

    def _collected_hidden(self, context: ForwardContext) -> torch.Tensor | None:
        """The kept hidden states of all rows and stages in the leader, where others send theirs."""
        if not self.kept_layers:
            return None
        ranks, rows = self._ranks, context.gathered
        if rows is None:
            raise RuntimeError("a forward over ranks knows its rows")
        n, H = self._num_own(context), self.config.hidden_size
        own = torch.cat([kept[:n] for kept in context.kept_hidden], dim=1) if context.kept_hidden else None
        if not ranks.is_leader:
            if own is not None and n:
                ranks.replica.send(own, ranks.leader, HIDDEN)
            return None
        result = torch.zeros(context.batch.num_rows, len(self.kept_layers), H, dtype=self.dtype)
        for rank in ranks.replica.members:
            place = ranks.layout.place(rank)
            layers = ModelShard(ranks.layout, place).layers(self.config.num_hidden_layers)
            columns = [i for i, number in enumerate(self.kept_layers) if number - 1 in layers]
            held = rows.shard(place.dp, place.tp)
            if not columns or not held:
                continue
            part = own
            if rank != ranks.rank:
                part = ranks.replica.receive((len(held), len(columns) * H), self.dtype, rank, HIDDEN)
            if part is not None:
                result[held.start : held.stop, columns] = part.view(len(held), len(columns), H)
        return result.flatten(1)
