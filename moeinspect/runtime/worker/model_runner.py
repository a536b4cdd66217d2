"""Runs forwards of the target on the device and brings their results to the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from moeinspect.runtime.capture.capturer import RoutedExpertsCapturer
from moeinspect.runtime.device.stream import Device, StreamEvent
from moeinspect.runtime.faults import BUFFER_REUSE, ActiveFaults
from moeinspect.runtime.forward_batch import ForwardBatch, ForwardMode
from moeinspect.runtime.scheduler.batch import ScheduledBatch, StepResult
from moeinspect.runtime.spec.draft_runner import DraftRunner
from moeinspect.runtime.spec.verify import accept_matching
from moeinspect.runtime.worker.batches import extend_inputs, prefill_inputs
from moeinspect.runtime.worker.device_state import DeviceState
from moeinspect.runtime.worker.forward_end import end_of_forward
from moeinspect.runtime.worker.forward_runner import ForwardRunner


@dataclass(slots=True)
class _DelayedCopy:
    """A device-to-host copy that waits for the next forward (fault `buffer-reuse`)."""

    result: StepResult
    enqueue: Callable[[], None]


class ModelRunner:
    """Launches scheduled batches on the device; the host reads a result after its `copy_done`.

    With `delayed_copy` (overlap) captured rows travel on the copy stream and are stored by the result
    handler; without it each forward stores its own rows before it returns, as upstream does.
    """

    def __init__(
        self,
        forwards: ForwardRunner,
        state: DeviceState,
        device: Device,
        capturer: RoutedExpertsCapturer,
        *,
        draft: DraftRunner | None,
        delayed_copy: bool,
        faults: ActiveFaults,
    ) -> None:
        self.state = state
        self.draft = draft
        self._forwards = forwards
        self._device = device
        self._capturer = capturer
        self._delayed_copy = delayed_copy
        self._reuse_buffer = delayed_copy and BUFFER_REUSE in faults
        self._waiting_copy: _DelayedCopy | None = None

    def launch(self, batch: ScheduledBatch) -> StepResult:
        """Enqueues the step and returns at once; nothing of the result is valid before `copy_done`."""
        # The host changes requests while the device runs: what the step needs of them is taken now.
        table_rows = torch.tensor(
            [request.table_row for request in batch.sampling_requests], dtype=torch.int64
        )
        result = StepResult(batch)
        if batch.mode is ForwardMode.PREFILL:
            self._launch_prefill(batch, table_rows, result)
        elif batch.mode is ForwardMode.DECODE:
            self._launch_decode(batch, table_rows, result)
        else:
            self._launch_verify(batch, table_rows, result)
        self._launch_copy(result)
        return result

    def before_reading(self, result: StepResult) -> None:
        """Called before the host waits for `result`: no forward follows that a copy could wait for."""
        if self._waiting_copy is not None and self._waiting_copy.result is result:
            self._release_waiting_copy()

    def _launch_prefill(self, batch: ScheduledBatch, table_rows: torch.Tensor, result: StepResult) -> None:
        # Built on the compute stream, since it reads the device's slot table there; the chunks' fields
        # that it reads do not change.
        requests = torch.tensor([request.table_row for request in batch.requests])
        inputs: list[ForwardBatch] = []

        def forward() -> None:
            inputs.append(prefill_inputs(batch, requests, self.state))
            logits = self._forward(inputs[0], result)
            first = torch.zeros(len(table_rows), dtype=torch.int64)
            tokens = self.state.sample(logits, table_rows, first)
            prompt_lens = torch.tensor([r.prompt_len for r in batch.sampling_requests], dtype=torch.int64)
            self.state.last_token[table_rows] = tokens
            self.state.next_position[table_rows] = prompt_lens
            self.state.output_position[table_rows] = 1
            result.device_tokens = tokens[:, None]
            result.device_num_tokens = torch.ones_like(tokens)

        self._device.compute.submit(forward, kind="prefill", step=batch.step)
        if self.draft is not None:
            self._submit_draft_extend(self.draft, inputs, result)

    def _launch_decode(self, batch: ScheduledBatch, table_rows: torch.Tensor, result: StepResult) -> None:
        def forward() -> None:
            state = self.state
            inputs = extend_inputs(
                ForwardMode.DECODE,
                table_rows,
                state.last_token[table_rows][:, None],
                state.next_position[table_rows],
                state,
            )
            logits = self._forward(inputs, result)
            tokens = state.sample(logits, table_rows, state.output_position[table_rows])
            state.advance(table_rows, tokens, torch.ones_like(tokens))
            result.device_tokens = tokens[:, None]
            result.device_num_tokens = torch.ones_like(tokens)

        self._device.compute.submit(forward, kind="decode", step=batch.step)

    def _launch_verify(self, batch: ScheduledBatch, table_rows: torch.Tensor, result: StepResult) -> None:
        draft = self.draft
        if draft is None:
            raise RuntimeError("a verify step needs a draft")
        drafts: list[torch.Tensor] = []
        inputs: list[ForwardBatch] = []

        def propose() -> None:
            drafts.append(draft.propose(table_rows, result.captures))

        def verify() -> None:
            state = self.state
            ids = torch.cat([state.last_token[table_rows][:, None], drafts[0]], dim=1)
            start, width = state.next_position[table_rows], ids.shape[1]
            inputs.append(extend_inputs(ForwardMode.VERIFY, table_rows, ids, start, state))
            logits = self._forward(inputs[0], result)
            output_positions = state.output_position[table_rows][:, None] + torch.arange(width)
            tokens = state.sample(logits, table_rows.repeat_interleave(width), output_positions.reshape(-1))
            tokens = tokens.view(-1, width)
            counts = accept_matching(drafts[0], tokens) + 1
            state.advance(table_rows, tokens.gather(1, counts[:, None] - 1)[:, 0], counts)
            result.device_tokens, result.device_num_tokens = tokens, counts

        self._device.compute.submit(propose, kind="draft", step=batch.step)
        self._device.compute.submit(verify, kind="verify", step=batch.step)
        self._submit_draft_extend(draft, inputs, result)

    def _submit_draft_extend(
        self, draft: DraftRunner, inputs: list[ForwardBatch], result: StepResult
    ) -> None:
        def extend() -> None:
            # The draft samples nothing here, it only computes the KV of the rows the target just ran.
            no_logits = torch.zeros(0, dtype=torch.int64)
            draft.extend(replace(inputs[0], logit_rows=no_logits), result.captures)

        self._device.compute.submit(extend, kind="draft-extend", step=result.batch.step)

    def _forward(self, inputs: ForwardBatch, result: StepResult) -> torch.Tensor:
        output = self._forwards.run(inputs)
        end_of_forward(
            self._capturer,
            output.slots,
            result.captures,
            delayed=self._delayed_copy,
            clone=not self._reuse_buffer,
        )
        return output.logits

    def _launch_copy(self, result: StepResult) -> None:
        computed = self._device.compute.record()
        if self._waiting_copy is not None:
            self._release_waiting_copy(computed)

        def enqueue(after: StreamEvent = computed) -> None:
            copy = self._device.copy
            copy.wait(after)
            copy.submit(lambda: _copy_to_host(result), kind="copy", step=result.batch.step)
            result.copy_done = copy.record()

        if self._reuse_buffer:
            self._waiting_copy = _DelayedCopy(result, enqueue)
        else:
            enqueue()

    def _release_waiting_copy(self, after: StreamEvent | None = None) -> None:
        waiting, self._waiting_copy = self._waiting_copy, None
        if waiting is not None:
            if after is not None:
                self._device.copy.wait(after)
            waiting.enqueue()


def _copy_to_host(result: StepResult) -> None:
    if result.device_tokens is None or result.device_num_tokens is None:
        raise RuntimeError("the copy ran before the forward")
    for capture in result.captures:
        capture.copy_to_host()
    result.tokens = result.device_tokens.numpy().copy()
    result.num_tokens = result.device_num_tokens.numpy().copy()
