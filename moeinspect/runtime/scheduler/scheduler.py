"""Continuous batching with chunked prefill; the normal and the overlapped loop side by side."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from moeinspect.runtime.capture.collector import RowCollector
from moeinspect.runtime.device.stream import Device
from moeinspect.runtime.forward_batch import ForwardMode
from moeinspect.runtime.memory.request_pool import RequestPool
from moeinspect.runtime.scheduler.batch import Chunk, ScheduledBatch, StepResult
from moeinspect.runtime.scheduler.outputs import OnOutputs, StepOutputs
from moeinspect.runtime.scheduler.policy import SchedulePolicy
from moeinspect.runtime.scheduler.request import Request
from moeinspect.runtime.worker.model_runner import ModelRunner

Receive = Callable[[bool], bool]
"""Takes in what arrived; the argument says that nothing else can be done until something does.

False: there is no work left and none will come.
"""


class Scheduler:
    """Decides what runs in each step and handles what comes back.

    Prefill goes before decode and takes chunks of several prompts up to a token budget. A request gets the
    KV slots of every position it may reach when it is admitted, so that nothing has to be preempted.
    """

    def __init__(
        self,
        runner: ModelRunner,
        pool: RequestPool,
        collector: RowCollector,
        device: Device,
        policy: SchedulePolicy,
        on_outputs: OnOutputs,
    ) -> None:
        self.pool = pool
        self.runner = runner
        self.collector = collector
        self.waiting: deque[Request] = deque()
        self.active: list[Request] = []
        self._device = device
        self._policy = policy
        self._on_outputs = on_outputs
        self._outputs = StepOutputs()
        self._decode_mode = ForwardMode.DECODE if runner.draft is None else ForwardMode.VERIFY
        self._step = 0

    @property
    def has_requests(self) -> bool:
        """Whether a request waits, runs or still has a step in flight."""
        return bool(self.waiting or self.active)

    def add(self, request: Request) -> None:
        """Queues a request."""
        self.waiting.append(request)

    def normal_loop(self, receive: Receive) -> Iterator[None]:
        """Each step's results are processed before the next step is scheduled; yields after each step."""
        idle = False
        while receive(idle):
            batch = self._next_batch()
            if batch is not None:
                self._process(self._launch(batch))
            idle = batch is None
            yield

    def overlap_loop(self, receive: Receive) -> Iterator[None]:
        """While the device runs step N the host processes step N-1 and schedules step N+1.

        Results are processed one step late: a request that ended in step N-1 may have a row in step N,
        which is computed and dropped.
        """
        idle = False
        last: StepResult | None = None
        while receive(idle) or last is not None:
            batch = self._next_batch()
            result = None if batch is None else self._launch(batch)
            if last is not None:
                self._process(last)
            idle = result is None and last is None
            last = result
            yield

    def _next_batch(self) -> ScheduledBatch | None:
        self._admit()
        prefilling = [request for request in self.active if not request.is_prefilled]
        decoding = [request for request in self.active if request.may_need_decode]
        if prefilling and (not decoding or self._policy.prefill_next()):
            return self._prefill_batch(prefilling)
        if decoding:
            requests = tuple(self._policy.select_decode(decoding))
            draft = self.runner.draft
            num_drafts = 0 if draft is None else draft.length.current
            return ScheduledBatch(self._take_step(), self._decode_mode, requests, num_drafts=num_drafts)
        return None

    def _admit(self) -> None:
        while self.waiting and self.pool.can_hold(self.waiting[0]):
            request = self.waiting.popleft()
            self._hold(request)
            self.active.append(request)

    def _hold(self, request: Request) -> None:
        self.pool.hold(request)
        self.collector.note_allocated(request)
        row, slots, seed = request.table_row, request.slots, request.seed
        token_ids = (*request.prompt.prompt_ids, *request.output_ids)
        # On the device the row may still be read by a step in flight: the change waits its turn.
        self._device.compute.submit(
            lambda: self.runner.state.assign(row, slots, seed, token_ids), kind="assign", step=self._step
        )

    def _prefill_batch(self, requests: list[Request]) -> ScheduledBatch:
        budget = self._policy.chunk_budget()
        chunks: list[Chunk] = []
        for request in requests:
            extend_len = min(budget, request.prompt_len - request.prefilled_len)
            if extend_len == 0:
                break
            chunks.append(Chunk(request, request.prefilled_len, extend_len))
            request.prefilled_len += extend_len
            budget -= extend_len
        batch_requests = tuple(chunk.request for chunk in chunks)
        return ScheduledBatch(self._take_step(), ForwardMode.PREFILL, batch_requests, tuple(chunks))

    def _take_step(self) -> int:
        self._step += 1
        return self._step - 1

    def _launch(self, batch: ScheduledBatch) -> StepResult:
        with self._device.log.interval("host", "launch", batch.step):
            for request in batch.requests:
                request.inflight += 1
            for request in batch.sampling_requests:
                request.inflight_samples += 1
            return self.runner.launch(batch)

    def _process(self, result: StepResult) -> None:
        self.runner.before_reading(result)
        if result.copy_done is None:
            raise RuntimeError("a step was launched without its copy")
        result.copy_done.synchronize()
        self._device.check()
        with self._device.log.interval("host", "process", result.batch.step):
            for request in result.batch.requests:
                request.inflight -= 1
            for request in result.batch.sampling_requests:
                request.inflight_samples -= 1
            if result.batch.mode is ForwardMode.PREFILL:
                self._process_prefill(result)
            else:
                self._process_decode(result)
            self._send_outputs()

    def _send_outputs(self) -> None:
        outputs, self._outputs = self._outputs, StepOutputs()
        if outputs.requests:
            self._on_outputs(outputs)

    def _process_prefill(self, result: StepResult) -> None:
        result.finalize()
        self._note_chunks(result.batch)
        for request, tokens in zip(result.batch.sampling_requests, result.outputs(), strict=True):
            kept = request.append_outputs(tokens)
            self._settle(request, tokens[:kept])

    def _process_decode(self, result: StepResult) -> None:
        result.finalize()
        batch = result.batch
        accepted: list[int] = []
        for request, tokens in zip(batch.requests, result.outputs(), strict=True):
            kept = 0
            if not request.is_finished:
                # One row for the last token and one for each accepted draft; rows of rejected drafts are
                # under slots that a later step computes again.
                start = request.next_position
                self.collector.note_computed(request, start, len(tokens), batch.mode, batch.step)
                kept = request.append_outputs(tokens)
                if batch.mode is ForwardMode.VERIFY:
                    request.num_drafted += batch.num_drafts
                    request.num_accepted += min(kept, len(tokens) - 1)
                    accepted.append(len(tokens) - 1)
            self._settle(request, tokens[:kept])
        if self.runner.draft is not None:
            self.runner.draft.length.observe(accepted)

    def _note_chunks(self, batch: ScheduledBatch) -> None:
        for chunk in batch.chunks:
            self.collector.note_computed(
                chunk.request, chunk.start, chunk.extend_len, ForwardMode.PREFILL, batch.step
            )

    def _settle(self, request: Request, new_tokens: list[int]) -> None:
        """Reports new tokens, an ended request once; frees its slots once no step in flight writes them."""
        if request.is_finished and not request.is_collected:
            request.is_collected = True
            start = self._first_collected_position(request)
            rows = self.collector.collect(request, start, request.prompt_len + len(request.output_ids) - 1)
            self._outputs.add(request, new_tokens, rows)
        elif new_tokens:
            self._outputs.add(request, new_tokens)
        if request.is_finished and request.inflight == 0:
            self._release(request)

    def _first_collected_position(self, request: Request) -> int:
        """Where the rows that this worker returns begin."""
        return 0

    def _release(self, request: Request) -> None:
        self.active.remove(request)
        self.pool.release(request)
