"""Runs forwards by replaying captured graphs with padded numbers of rows, and eagerly where none fits."""

from __future__ import annotations

from collections.abc import Callable

import torch

from moeinspect.runtime.faults import NO_FAULTS, PADDED_ROWS, ActiveFaults
from moeinspect.runtime.forward_batch import ForwardBatch, ForwardMode, ForwardOutput, empty_batch
from moeinspect.runtime.layers.context import ForwardContext
from moeinspect.runtime.memory.kv_cache import KVCache
from moeinspect.runtime.models.qwen3_moe import Qwen3MoeForCausalLM
from moeinspect.runtime.parallel.team import ALONE, Team
from moeinspect.runtime.worker.forward_runner import ForwardRunner
from moeinspect.runtime.worker.graph import BufferPool, Graph

MAX_DECODE_ROWS = 256
MAX_PREFILL_ROWS = 512
"""Rows beyond which a forward runs eagerly: there is little to win, and static buffers cost memory."""


OnDevice = Callable[[Callable[[], None]], None]


def _here(work: Callable[[], None]) -> None:
    work()


def row_buckets(max_rows: int) -> tuple[int, ...]:
    """Padded numbers of rows, ascending: powers of two below `max_rows`, then `max_rows` itself."""
    powers = [1]
    while powers[-1] * 2 < max_rows:
        powers.append(powers[-1] * 2)
    return tuple(powers) if powers[-1] == max_rows else (*powers, max_rows)


class GraphRunner(ForwardRunner):
    """As `ForwardRunner`, with graphs captured before the first request.

    Decode and verify forwards have graphs of their own and prefill others, as upstream's decode and
    piecewise prefill graphs. Everything but attention works row by row and attention's metadata is prepared
    outside, so a graph fits a number of rows: requests times rows per request, or a chunk's tokens.
    Without `prefill` there are none of the latter: upstream's draft workers have decode graphs only.
    `max_rows` is the most rows of any forward; `on_device` runs the capture on the compute stream, where the
    number of threads is that of the replays, and waits for it.
    """

    replays_graphs = True

    def __init__(
        self,
        model: Qwen3MoeForCausalLM,
        kv: KVCache,
        *,
        backend: str,
        max_rows: int,
        prefill: bool = True,
        on_device: OnDevice = _here,
        faults: ActiveFaults = NO_FAULTS,
        team: Team = ALONE,
    ) -> None:
        super().__init__(model, kv, backend=backend, faults=faults, team=team)
        self._on_device = on_device
        self.decode_buckets = row_buckets(min(max_rows, MAX_DECODE_ROWS))
        self.prefill_buckets = row_buckets(min(max_rows, MAX_PREFILL_ROWS)) if prefill else ()

    def initialize(self) -> None:
        """Builds the backends, then captures the graphs: these keep the backends that they find."""
        super().initialize()
        self._on_device(self._capture_graphs)

    def _capture_graphs(self) -> None:
        pool = BufferPool()
        self._decode = GraphSet(self.model, self.kv, self.decode_buckets, pool)
        self._prefill = GraphSet(
            self.model, self.kv, self.prefill_buckets, pool, mask_first=PADDED_ROWS not in self._faults
        )

    def _forward(self, inputs: ForwardBatch) -> ForwardOutput:
        """Replays the smallest graph that holds the rows of `inputs`; without one, runs eagerly."""
        graphs = self._prefill if inputs.mode is ForwardMode.PREFILL else self._decode
        bucket = graphs.bucket_of(inputs.num_rows)
        return super()._forward(inputs) if bucket is None else graphs.replay(bucket, inputs)


class GraphSet:
    """Graphs of one kind of forward for several numbers of rows, over shared static input buffers."""

    def __init__(
        self,
        model: Qwen3MoeForCausalLM,
        kv: KVCache,
        buckets: tuple[int, ...],
        pool: BufferPool,
        *,
        mask_first: bool = True,
    ) -> None:
        """Captures the graphs. Without `mask_first` padding is masked only after capture (`padded-rows`)."""
        self._model = model
        self._kv = kv
        self._mask_first = mask_first
        self._buckets = buckets
        self._inputs = StaticInputs(model, max(buckets, default=0))
        self._graphs: dict[int, _CapturedForward] = {}
        for bucket in reversed(buckets):
            self._graphs[bucket] = self._capture(bucket, pool)

    def bucket_of(self, num_rows: int) -> int | None:
        """The smallest bucket that holds so many rows; None for none at all and for too many."""
        return next((bucket for bucket in self._buckets if 0 < num_rows <= bucket), None)

    def replay(self, bucket: int, batch: ForwardBatch) -> ForwardOutput:
        """Runs `batch`, padded to `bucket` rows.

        Padding has neither keys nor queries, which attention's metadata takes from the batch, and it is
        masked before the routers: so nothing of it can reach a real slot, although the static buffers
        behind the batch's rows still hold what an earlier, larger batch left there.
        """
        captured = self._graphs[bucket]
        self._inputs.load(batch, self._model)
        context = captured.context
        self._model.begin(context, batch, batch.num_rows if self._mask_first else bucket)
        captured.graph.replay()
        return self._model.output(
            captured.hidden,
            context,
            slots=self._inputs.out_slots[: context.num_rows],
            static=batch.mode is not ForwardMode.PREFILL,
        )

    @torch.no_grad()
    def _capture(self, bucket: int, pool: BufferPool) -> _CapturedForward:
        """Captures a forward of no real rows: it stores no keys and routes nothing."""
        graph = Graph(pool)
        padded = self._model.padded(bucket)
        context = ForwardContext(
            self._kv,
            self._inputs.cos[:padded],
            self._inputs.sin[:padded],
            self._inputs.input_ids[:padded],
            batch=empty_batch(),
            plan=None,
            num_rows=0,
            launch=graph.launch,
            input_hidden=self._inputs.hidden[:padded],
        )
        hidden = self._model.run_layers(context.input_ids, context)
        return _CapturedForward(graph, context, hidden)


class _CapturedForward:
    """A graph, what its kernels read of the batch, and its static output [padded, H]."""

    def __init__(self, graph: Graph, context: ForwardContext, hidden: torch.Tensor) -> None:
        self.graph = graph
        self.context = context
        self.hidden = hidden


class StaticInputs:
    """Inputs that graphs read at fixed addresses; a batch fills the front, padding has token 0.

    `out_slots` [max_rows] are the slots under which captured rows are stored.
    """

    def __init__(self, model: Qwen3MoeForCausalLM, max_rows: int) -> None:
        padded = model.padded(max_rows)
        table = (padded, 1, model.config.head_dim)
        self.input_ids = torch.zeros(padded, dtype=torch.int64)
        self.out_slots = torch.zeros(max_rows, dtype=torch.int64)
        self.cos = torch.zeros(table, dtype=model.dtype)
        self.sin = torch.zeros(table, dtype=model.dtype)
        self.hidden = torch.zeros(padded, model.input_hidden_size, dtype=model.dtype)

    def load(self, batch: ForwardBatch, model: Qwen3MoeForCausalLM) -> None:
        """Copies a batch's inputs in."""
        own = model.own_rows(batch.num_rows)
        input_ids, (cos, sin) = batch.input_ids[own], model.rotary_tables(batch)
        n = input_ids.shape[0]
        self.input_ids[:n] = input_ids
        self.input_ids[n:] = 0
        self.cos[:n], self.sin[:n] = cos[own], sin[own]
        self.out_slots[: batch.num_rows] = batch.out_slots
        if batch.input_hidden is not None:
            self.hidden[:n] = batch.input_hidden
