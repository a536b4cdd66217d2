"""Runs a draft model: proposes tokens, and keeps its own KV up to date."""

from __future__ import annotations

import torch

from moeinspect.runtime.capture.capturer import TopkCaptureOutput, get_global_experts_capturer
from moeinspect.runtime.capture.gate import disable_routed_experts_capture_for_draft
from moeinspect.runtime.faults import DRAFT_CAPTURE, ActiveFaults
from moeinspect.runtime.forward_batch import ForwardBatch, ForwardMode
from moeinspect.runtime.spec.draft_length import DraftLength
from moeinspect.runtime.spec.proposer import Proposer
from moeinspect.runtime.spec.tree import Proposal
from moeinspect.runtime.worker.batches import extend_inputs
from moeinspect.runtime.worker.device_state import DeviceState
from moeinspect.runtime.worker.forward_end import end_of_forward
from moeinspect.runtime.worker.forward_runner import ForwardRunner


class DraftModel(Proposer):
    """A draft worker. It shares the target's slots, and has a KV cache and MoE layers of its own.

    It makes no capturer, its layers are opted out before the top-k backend is initialised, and its
    forwards do not end with a capture (the three guards of SGLang PR 26980). Fault `draft-capture`
    lifts all of them.
    """

    def __init__(
        self,
        forwards: ForwardRunner,
        state: DeviceState,
        length: DraftLength,
        width: int,
        *,
        delayed_copy: bool,
        faults: ActiveFaults,
    ) -> None:
        super().__init__(length, width)
        self._forwards = forwards
        self._state = state
        self._delayed_copy = delayed_copy
        self._captured = DRAFT_CAPTURE in faults
        if not self._captured:
            disable_routed_experts_capture_for_draft(forwards.model)
        forwards.initialize()

    def propose(
        self, table_rows: torch.Tensor, num_drafts: int, captures: list[TopkCaptureOutput]
    ) -> Proposal:
        """A chain of `num_drafts` tokens for each request [B, n], one forward a token."""
        state = self._state
        token = state.last_token[table_rows]
        start = state.next_position[table_rows]
        output_position = state.output_position[table_rows]
        drafts: list[torch.Tensor] = []
        for i in range(num_drafts):
            inputs = extend_inputs(ForwardMode.DECODE, table_rows, token[:, None], start + i, state)
            logits = self._forward(inputs, captures)
            token = state.sample(logits, table_rows, output_position + i)
            drafts.append(token)
        return Proposal(torch.stack(drafts, dim=1))

    def extend(self, inputs: ForwardBatch, captures: list[TopkCaptureOutput]) -> None:
        """Computes the draft's KV for the rows that the target just ran, in the target's batch layout."""
        self._forward(inputs, captures)

    def _forward(self, inputs: ForwardBatch, captures: list[TopkCaptureOutput]) -> torch.Tensor:
        output = self._forwards.run(inputs)
        capturer = get_global_experts_capturer()
        if self._captured and capturer is not None:
            end_of_forward(capturer, output.slots, captures, delayed=self._delayed_copy)
        return output.logits
