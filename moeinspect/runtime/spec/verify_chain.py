"""Verifies chains: the last token and the drafts of each request are one stretch of positions."""

from __future__ import annotations

from dataclasses import replace

import torch

from moeinspect.runtime.capture.capturer import TopkCaptureOutput
from moeinspect.runtime.forward_batch import ForwardBatch, ForwardMode
from moeinspect.runtime.scheduler.batch import StepResult
from moeinspect.runtime.spec.tree import Proposal
from moeinspect.runtime.spec.verify import accept_matching
from moeinspect.runtime.worker.batches import extend_inputs
from moeinspect.runtime.worker.device_state import DeviceState
from moeinspect.runtime.worker.hidden import hidden_before
from moeinspect.runtime.worker.target_forwards import TargetForwards


def verify_chain(
    proposal: Proposal,
    table_rows: torch.Tensor,
    target: TargetForwards,
    state: DeviceState,
    result: StepResult,
    captures: list[TopkCaptureOutput],
) -> ForwardBatch:
    """One forward of the target over last token and drafts; returns the rows for the draft to extend by.

    The captured rows join `captures` where they travel with the step's result.

    Rows of rejected drafts lie under slots that a later step computes again.
    """
    ids = torch.cat([state.last_token[table_rows][:, None], proposal.tokens], dim=1)
    start, width = state.next_position[table_rows], ids.shape[1]
    inputs = extend_inputs(ForwardMode.VERIFY, table_rows, ids, start, state)
    output, _ = target.run(inputs, captures)
    output_positions = state.output_position[table_rows][:, None] + torch.arange(width)
    tokens = state.sample(output.logits, table_rows.repeat_interleave(width), output_positions.reshape(-1))
    tokens = tokens.view(-1, width)
    counts = accept_matching(proposal.tokens, tokens) + 1
    state.advance(table_rows, tokens, counts)
    result.device_tokens, result.device_num_tokens = tokens, counts
    if output.hidden is None or state.last_hidden is None:
        return inputs
    before = hidden_before(output.hidden, inputs, table_rows, state)
    last = output.hidden.view(len(table_rows), width, -1)[torch.arange(len(table_rows)), counts - 1]
    state.last_hidden[table_rows] = last
    return replace(inputs, input_hidden=before)
