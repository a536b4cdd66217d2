"""The two kinds of step that need no draft: prefill and decode."""

from __future__ import annotations

from dataclasses import replace

import torch

from moeinspect.runtime.capture.capturer import TopkCaptureOutput
from moeinspect.runtime.forward_batch import ForwardBatch, ForwardMode
from moeinspect.runtime.scheduler.batch import ScheduledBatch, StepResult
from moeinspect.runtime.worker.batches import extend_inputs, prefill_inputs
from moeinspect.runtime.worker.device_state import DeviceState
from moeinspect.runtime.worker.hidden import hidden_before, remember_last_rows
from moeinspect.runtime.worker.target_forwards import TargetForwards


def prefill(
    batch: ScheduledBatch,
    table_rows: torch.Tensor,
    sampling_rows: torch.Tensor,
    target: TargetForwards,
    state: DeviceState,
    result: StepResult,
    captures: list[TopkCaptureOutput],
) -> ForwardBatch:
    """Computes chunks of prefills, samples where one is complete; returns the rows that it ran.

    `table_rows` are those of the batch's requests, `sampling_rows` of those whose prompt is complete.
    """
    inputs = prefill_inputs(batch, table_rows, state)
    output, _ = target.run(inputs, captures)
    ran = inputs
    if output.hidden is not None:
        ran = replace(inputs, input_hidden=hidden_before(output.hidden, inputs, table_rows, state))
        remember_last_rows(output.hidden, inputs, table_rows, state)
    sampling = batch.sampling_requests
    output_positions = torch.tensor([r.fill_output_position for r in sampling], dtype=torch.int64)
    tokens = state.sample(output.logits, sampling_rows, output_positions)
    next_positions = torch.tensor([request.fill_len for request in sampling], dtype=torch.int64)
    state.begin(sampling_rows, tokens, next_positions, output_positions + 1)
    result.device_tokens = tokens[:, None]
    result.device_num_tokens = torch.ones_like(tokens)
    if state.last_hidden is not None:
        result.device_hidden = state.last_hidden[sampling_rows]
    return ran


def decode(table_rows: torch.Tensor, target: TargetForwards, state: DeviceState, result: StepResult) -> None:
    """Feeds each request's last token and samples the next."""
    inputs = extend_inputs(
        ForwardMode.DECODE,
        table_rows,
        state.last_token[table_rows][:, None],
        state.next_position[table_rows],
        state,
    )
    output, _ = target.run(inputs, result.captures)
    tokens = state.sample(output.logits, table_rows, state.output_position[table_rows])
    counts = torch.ones_like(tokens)
    state.advance(table_rows, tokens[:, None], counts)
    result.device_tokens, result.device_num_tokens = tokens[:, None], counts
