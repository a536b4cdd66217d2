"""Launches steps of the target, and of its draft, on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from moeinspect.runtime.capture.capturer import TopkCaptureOutput
from moeinspect.runtime.device.stream import Device
from moeinspect.runtime.faults import BUFFER_REUSE, VERIFY_DROPPED, ActiveFaults
from moeinspect.runtime.forward_batch import ForwardBatch, ForwardMode
from moeinspect.runtime.models.qwen3_moe import Qwen3MoeForCausalLM
from moeinspect.runtime.parallel.capture import RankCapture
from moeinspect.runtime.scheduler.batch import ScheduledBatch, StepResult
from moeinspect.runtime.scheduler.request import Request
from moeinspect.runtime.spec.proposer import Proposer
from moeinspect.runtime.spec.tree import Proposal
from moeinspect.runtime.spec.verify_chain import verify_chain
from moeinspect.runtime.spec.verify_tree import verify_tree
from moeinspect.runtime.worker.device_state import DeviceState
from moeinspect.runtime.worker.forward_runner import ForwardRunner
from moeinspect.runtime.worker.result_copies import ResultCopies
from moeinspect.runtime.worker.steps import decode, prefill
from moeinspect.runtime.worker.target_forwards import TargetForwards


class ModelRunner:
    """Launches scheduled batches on the device; the host reads a result after its `copy_done`."""

    def __init__(
        self,
        forwards: ForwardRunner,
        state: DeviceState,
        device: Device,
        *,
        draft: Proposer | None,
        delayed_copy: bool,
        faults: ActiveFaults,
        gathering: RankCapture | None = None,
    ) -> None:
        self.state = state
        self.draft = draft
        self._device = device
        self._forwards = forwards
        self._faults = faults
        reuse_buffer = delayed_copy and BUFFER_REUSE in faults
        self._target = TargetForwards(
            forwards, delayed_copy=delayed_copy, clone=not reuse_buffer, gathering=gathering
        )
        self._copies = ResultCopies(device, after_next_step=reuse_buffer)

    def launch(self, batch: ScheduledBatch) -> StepResult:
        """Enqueues the step and returns at once; nothing of the result is valid before `copy_done`."""
        # The host changes requests while the device runs: what the step needs of them is taken now.
        sampling_rows = _table_rows(batch.sampling_requests)
        result = StepResult(batch)
        if batch.mode is ForwardMode.PREFILL:
            self._launch_prefill(batch, sampling_rows, result)
        elif batch.mode is ForwardMode.DECODE:
            self._submit(lambda: decode(sampling_rows, self._target, self.state, result), "decode", batch)
        else:
            self._launch_verify(batch, sampling_rows, result)
        self._copies.launch(result)
        return result

    def launch_idle(self, step: int) -> None:
        """Enqueues a forward without rows: other data-parallel ranks run one, and need these experts."""
        self._device.compute.submit(self._forwards.run_idle, kind="idle", step=step)

    def replace_model(self, model: Qwen3MoeForCausalLM) -> None:
        """Serves with `model`, of the same shape, from the next launch on; nothing may be in flight."""
        self._forwards.replace_model(model)

    def before_reading(self, result: StepResult) -> None:
        """Called before the host waits for `result`."""
        self._copies.before_reading(result)

    def _launch_prefill(self, batch: ScheduledBatch, sampling_rows: torch.Tensor, result: StepResult) -> None:
        table_rows = _table_rows(batch.requests)
        is_ngram = self.draft is not None and not self.draft.has_model
        captures = self._spec_captures(result) if is_ngram else result.captures
        ran: list[ForwardBatch] = []

        def forward() -> None:
            # Built on the compute stream, since it reads the device's slot table there; the chunks' fields
            # that it reads do not change.
            ran.append(prefill(batch, table_rows, sampling_rows, self._target, self.state, result, captures))

        self._submit(forward, "prefill", batch)
        if self.draft is not None:
            self._submit_extend(self.draft, ran, result)

    def _launch_verify(self, batch: ScheduledBatch, table_rows: torch.Tensor, result: StepResult) -> None:
        draft = self.draft
        if draft is None:
            raise RuntimeError("a verify step needs a draft")
        captures = self._spec_captures(result)
        proposed: list[Proposal] = []
        ran: list[ForwardBatch] = []

        def propose() -> None:
            proposed.append(draft.propose(table_rows, batch.num_drafts, result.captures))

        def verify() -> None:
            proposal = proposed[0]
            if proposal.shape is None:
                rows = verify_chain(proposal, table_rows, self._target, self.state, result, captures)
            else:
                rows = verify_tree(
                    proposal, table_rows, self._target, self.state, result, captures, self._faults
                )
            ran.append(rows)

        self._submit(propose, "draft", batch)
        self._submit(verify, "verify", batch)
        self._submit_extend(draft, ran, result)

    def _spec_captures(self, result: StepResult) -> list[TopkCaptureOutput]:
        """Where a forward that a draft's worker runs for the target leaves its captured rows.

        That worker makes a result of its own; under fault `verify-dropped` it has no field for them, so they
        go nowhere unless they were stored at once.
        """
        return [] if VERIFY_DROPPED in self._faults else result.captures

    def _submit_extend(self, draft: Proposer, ran: list[ForwardBatch], result: StepResult) -> None:
        if not draft.has_model:
            return

        def extend() -> None:
            # The draft samples nothing here, it only computes the KV of the rows the target just ran.
            no_logits = torch.zeros(0, dtype=torch.int64)
            draft.extend(replace(ran[0], logit_rows=no_logits), result.captures)

        self._submit(extend, "draft-extend", result.batch)

    def _submit(self, work: Callable[[], None], kind: str, batch: ScheduledBatch) -> None:
        self._device.compute.submit(work, kind=kind, step=batch.step)


def _table_rows(requests: Sequence[Request]) -> torch.Tensor:
    return torch.tensor([request.table_row for request in requests], dtype=torch.int64)
