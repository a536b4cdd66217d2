"""Runs a draft model: proposes a chain of tokens, and keeps its own KV up to date."""

from __future__ import annotations

import torch

from moeinspect.runtime.capture.capturer import TopkCaptureOutput, get_global_experts_capturer
from moeinspect.runtime.capture.gate import disable_routed_experts_capture_for_draft
from moeinspect.runtime.faults import DRAFT_CAPTURE, ActiveFaults
from moeinspect.runtime.forward_batch import ForwardBatch, ForwardMode
from moeinspect.runtime.worker.batches import extend_inputs
from moeinspect.runtime.worker.device_state import DeviceState
from moeinspect.runtime.worker.forward_end import end_of_forward
from moeinspect.runtime.worker.forward_runner import ForwardRunner


class DraftRunner:
    """A draft worker. It shares the target's slots, and has a KV cache and MoE layers of its own.

    It makes no capturer, its layers are opted out before the top-k backend is initialised, and its
    forwards do not end with a capture (the three guards of SGLang PR 26980). Fault `draft-capture`
    lifts all of them.
    """

    def __init__(
        self,
        forwards: ForwardRunner,
        state: DeviceState,
        *,
        num_draft_tokens: int,
        delayed_copy: bool,
        faults: ActiveFaults,
    ) -> None:
        self.num_draft_tokens = num_draft_tokens
        self._forwards = forwards
        self._state = state
        self._delayed_copy = delayed_copy
        self._captured = DRAFT_CAPTURE in faults
        if not self._captured:
            disable_routed_experts_capture_for_draft(forwards.model)
        forwards.initialize()

    def propose(self, table_rows: torch.Tensor, captures: list[TopkCaptureOutput]) -> torch.Tensor:
        """A chain of `num_draft_tokens` tokens for each request [B, n], one forward a token."""
        state = self._state
        token = state.last_token[table_rows]
        start = state.next_position[table_rows]
        output_position = state.output_position[table_rows]
        drafts: list[torch.Tensor] = []
        for i in range(self.num_draft_tokens):
            inputs = extend_inputs(ForwardMode.DECODE, table_rows, token[:, None], start + i, state)
            logits = self._forward(inputs, captures)
            token = state.sample(logits, table_rows, output_position + i)
            drafts.append(token)
        return torch.stack(drafts, dim=1)

    def extend(self, inputs: ForwardBatch, captures: list[TopkCaptureOutput]) -> None:
        """Computes the draft's KV for the rows that the target just ran, in the target's batch layout."""
        self._forward(inputs, captures)

    def _forward(self, inputs: ForwardBatch, captures: list[TopkCaptureOutput]) -> torch.Tensor:
        output = self._forwards.run(inputs)
        capturer = get_global_experts_capturer()
        if self._captured and capturer is not None:
            end_of_forward(capturer, output.slots, captures, delayed=self._delayed_copy)
        return output.logits
