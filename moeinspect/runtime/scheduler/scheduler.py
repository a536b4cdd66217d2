"""Continuous batching with chunked prefill; the normal and the overlapped loop side by side."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from moeinspect.runtime.capture.collector import CollectedRows, RowCollector
from moeinspect.runtime.device.stream import Device
from moeinspect.runtime.faults import NO_FAULTS, READ_EARLY, ActiveFaults
from moeinspect.runtime.forward_batch import ForwardMode
from moeinspect.runtime.memory.request_pool import RequestPool
from moeinspect.runtime.records import RequestKey
from moeinspect.runtime.scheduler.batch import Chunk, ScheduledBatch, StepResult
from moeinspect.runtime.scheduler.lockstep import Lockstep, Turn
from moeinspect.runtime.scheduler.outputs import OnOutputs, StepOutputs
from moeinspect.runtime.scheduler.policy import SchedulePolicy
from moeinspect.runtime.scheduler.request import Request
from moeinspect.runtime.scheduler.residents import Residents
from moeinspect.runtime.scheduler.row_answers import RowAnswers
from moeinspect.runtime.scheduler.weight_update import WeightUpdate
from moeinspect.runtime.worker.model_runner import ModelRunner

Receive = Callable[[bool], bool]
"""Takes in what arrived; the argument says that nothing else can be done until something does.

False: there is no work left and none will come.
"""


class Scheduler:
    """Decides what runs in each step and handles what comes back.

    Prefill goes before decode and takes chunks of several prompts up to a token budget. Which requests hold
    KV slots is the business of `residents`.
    """

    def __init__(
        self,
        runner: ModelRunner,
        pool: RequestPool,
        collector: RowCollector,
        device: Device,
        policy: SchedulePolicy,
        on_outputs: OnOutputs,
        *,
        faults: ActiveFaults = NO_FAULTS,
        weight_updates: Sequence[WeightUpdate] = (),
        lockstep: Lockstep | None = None,
    ) -> None:
        self.pool = pool
        self.runner = runner
        self.collector = collector
        self.faults = faults
        self.weight_version = 0
        self._device = device
        self._policy = policy
        self._on_outputs = on_outputs
        self._outputs = StepOutputs()
        self._answers = RowAnswers(collector, faults)
        self._decode_mode = ForwardMode.DECODE if runner.draft is None else ForwardMode.VERIFY
        self._step = 0
        self._weight_updates = deque(weight_updates)
        self._lockstep = lockstep
        self.residents = self._make_residents()

    @property
    def has_requests(self) -> bool:
        """Whether a request waits, runs or still has a step in flight."""
        return bool(self.residents.waiting or self.residents.active)

    def add(self, request: Request) -> None:
        """Queues a request."""
        self.residents.waiting.append(request)

    def abort(self, key: RequestKey) -> None:
        """Ends a request now: it is reported with what was processed so far; unknown keys are ignored."""
        request = self.residents.find(key)
        if request is None or request.is_finished:
            return
        request.finish_reason = "abort"
        if request in self.residents.waiting:
            self.residents.forget(request)
            request.is_collected = True
            self._outputs.add(request, [], self._collect(request))
        else:
            self._settle(request, [])
        self._send_outputs()

    def normal_loop(self, receive: Receive) -> Iterator[None]:
        """Each step's results are processed before the next step is scheduled; yields after each step."""
        idle = False
        while (turn := self._next_turn(receive(idle))).goes_on:
            result = self._launch_turn(turn)
            if result is not None:
                self._process(result)
            idle = turn.is_idle
            yield

    def overlap_loop(self, receive: Receive) -> Iterator[None]:
        """While the device runs step N the host processes step N-1 and schedules step N+1.

        Results are processed one step late: a request that ended in step N-1 may have a row in step N,
        which is computed and dropped.
        """
        idle = False
        last: StepResult | None = None
        while (turn := self._next_turn(receive(idle) or last is not None)).goes_on:
            result = self._launch_turn(turn)
            if last is not None:
                self._process(last)
            idle = turn.is_idle and last is None
            last = result
            yield

    def _make_residents(self) -> Residents:
        return Residents(self.pool, self.collector, self._device, self.runner.state)

    def _next_turn(self, has_work: bool) -> Turn:
        """What this round of the loop launches; without work it may still have to go along with others."""
        batch = self._next_batch() if has_work else None
        if self._lockstep is None:
            return Turn(batch, goes_on=has_work)
        return self._lockstep.turn(batch, has_work=has_work)

    def _launch_turn(self, turn: Turn) -> StepResult | None:
        if turn.batch is not None:
            return self._launch(turn.batch)
        if turn.joins:
            self.runner.launch_idle(self._step)
        return None

    def _next_batch(self) -> ScheduledBatch | None:
        if self._weight_updates and self._step >= self._weight_updates[0].step and not self._update_weights():
            return None
        self._admit()
        active = [request for request in self.residents.active if not request.is_finished]
        prefilling = [r for r in active if not r.is_prefilled and not r.is_retracting]
        decoding = [request for request in active if request.may_need_decode]
        if prefilling and (not decoding or self._policy.prefill_next()):
            return self._prefill_batch(prefilling)
        if decoding:
            requests = self.residents.reserve(self._policy.select_decode(decoding), self._step)
            if requests:
                draft = self.runner.draft
                num_drafts = 0 if draft is None else draft.length.current
                return ScheduledBatch(self._take_step(), self._decode_mode, requests, num_drafts=num_drafts)
        return None

    def _admit(self) -> None:
        for request in self.residents.admit(self._policy.prefill_ahead()):
            # What the prefix cache had was computed under the present weights: an update empties it.
            request.note_computed(request.computed_len, self.weight_version)

    def _prefill_batch(self, requests: list[Request]) -> ScheduledBatch:
        budget = self._policy.chunk_budget()
        chunks: list[Chunk] = []
        for request in requests:
            extend_len = min(budget, request.fill_len - request.prefilled_len)
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

    def _update_weights(self) -> bool:
        """Swaps the weights if nothing is in flight; everything computed so far has to be computed again.

        Mirrors an update after `pause_generation(mode="retract")` of SGLang.
        """
        if not self.residents.retract_all():
            return False
        if self.pool.cache is not None:
            self.pool.cache.reset()
        self._device.compute.synchronize()
        self.runner.replace_model(self._weight_updates.popleft().model)
        self.weight_version += 1
        return True

    def _launch(self, batch: ScheduledBatch) -> StepResult:
        with self._device.log.interval("host", "launch", batch.step):
            for request in batch.requests:
                request.inflight += 1
            for request in batch.sampling_requests:
                request.inflight_samples += 1
            return self.runner.launch(batch)

    def _process(self, result: StepResult) -> None:
        self.runner.before_reading(result)
        if result.copy_done is None or result.tokens_done is None:
            raise RuntimeError("a step was launched without its copy")
        reads_early = READ_EARLY in self.faults
        (result.tokens_done if reads_early else result.copy_done).synchronize()
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
            for request in result.batch.requests:
                self.residents.retract_if_drained(request)
            self._send_outputs()
        if reads_early:
            result.copy_done.synchronize()
            result.finalize()

    def _send_outputs(self) -> None:
        outputs, self._outputs = self._outputs, StepOutputs()
        if outputs.requests:
            self._on_outputs(outputs)

    def _store_rows(self, result: StepResult) -> None:
        """Stores the step's captured rows before anything is collected.

        Fault `read-early` has waited for the tokens alone: the rows come too late for requests that end here.
        """
        if READ_EARLY not in self.faults:
            result.finalize()

    def _process_prefill(self, result: StepResult) -> None:
        self._store_rows(result)
        self._note_chunks(result.batch)
        for request, tokens in zip(result.batch.sampling_requests, result.outputs(), strict=True):
            self._settle(request, self._append(request, tokens))
        for chunk in result.batch.chunks:
            self._end_prefill(chunk)

    def _process_decode(self, result: StepResult) -> None:
        self._store_rows(result)
        batch = result.batch
        accepted: list[int] = []
        for request, tokens in zip(batch.requests, result.outputs(), strict=True):
            kept: list[int] = []
            if not request.is_finished:
                # One row for the last token and one for each accepted draft; rows of rejected drafts are
                # under slots that a later step computes again.
                start = request.next_position
                self.collector.note_computed(request, start, len(tokens), batch.mode, batch.step)
                request.note_computed(start + len(tokens), self.weight_version)
                kept = self._append(request, tokens)
                if batch.mode is ForwardMode.VERIFY:
                    request.num_drafted += batch.num_drafts
                    request.num_accepted += min(len(kept), len(tokens) - 1)
                    accepted.append(len(tokens) - 1)
            self._settle(request, kept)
        if self.runner.draft is not None:
            self.runner.draft.length.observe(accepted)

    def _append(self, request: Request, tokens: list[int]) -> list[int]:
        """The sampled tokens that the request keeps; none if it has ended already."""
        return [] if request.is_finished else tokens[: request.append_outputs(tokens)]

    def _note_chunks(self, batch: ScheduledBatch) -> None:
        for chunk in batch.chunks:
            self.collector.note_computed(
                chunk.request, chunk.start, chunk.extend_len, ForwardMode.PREFILL, batch.step
            )
            chunk.request.note_computed(chunk.start + chunk.extend_len, self.weight_version)

    def _end_prefill(self, chunk: Chunk) -> None:
        """What follows once a prefill is known to be computed."""
        request = chunk.request
        if chunk.completes_prefill and not request.is_finished:
            if request.samples:
                self.pool.share_prefix(request)
            else:
                request.finish_reason = "length"
        if request.is_finished:
            self._settle(request, [])

    def _settle(self, request: Request, new_tokens: list[int]) -> None:
        """Reports new tokens, an ended request once; frees its slots once no step in flight writes them."""
        if request.is_finished and not request.is_collected:
            request.is_collected = True
            self._outputs.add(request, new_tokens, self._collect(request))
        elif new_tokens:
            self._outputs.add(request, new_tokens)
        if request.is_finished and request.inflight == 0 and request.table_row >= 0:
            self._release(request)

    def _collect(self, request: Request) -> CollectedRows | None:
        return self._answers.rows_of(request, self._first_collected_position(request))

    def _first_collected_position(self, request: Request) -> int:
        """Where the rows that this worker returns begin."""
        return 0

    def _release(self, request: Request) -> None:
        self.residents.release(request)
