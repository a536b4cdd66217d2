"""Runs a draft model: proposes tokens, and keeps its own KV up to date."""

from __future__ import annotations

from dataclasses import replace

import torch

from moeinspect.runtime.capture.capturer import (
    RoutedExpertsCapturer,
    TopkCaptureOutput,
    get_global_experts_capturer,
    set_global_experts_capturer,
)
from moeinspect.runtime.faults import DRAFT_FORWARD_END, DRAFT_RECREATES_CAPTURER, ActiveFaults
from moeinspect.runtime.forward_batch import ForwardBatch, ForwardMode, ForwardOutput
from moeinspect.runtime.models.config import ModelConfig
from moeinspect.runtime.models.draft_heads import DraftHead
from moeinspect.runtime.spec.draft_guards import ends_captured, initialize_draft
from moeinspect.runtime.spec.draft_length import DraftLength
from moeinspect.runtime.spec.proposer import Proposer
from moeinspect.runtime.spec.tree import Proposal, TreeShape, best_children
from moeinspect.runtime.worker.batches import extend_inputs, tree_inputs
from moeinspect.runtime.worker.device_state import DeviceState
from moeinspect.runtime.worker.forward_end import end_of_forward
from moeinspect.runtime.worker.forward_runner import ForwardRunner


class DraftModel(Proposer):
    """A draft worker. It shares the target's slots, and has a KV cache and MoE layers of its own.

    A `DraftHead` reads hidden states beside tokens: the target's where the target has run, else its own.

    It makes no capturer, its layers are opted out before the top-k backend is initialised, and its
    forwards do not end with a capture (the three guards of SGLang PR 26980; `draft_guards` has the last
    two). Fault `draft-capture` lifts all that matter, `draft-recreates-capturer` the first alone, and
    `draft-forward-end` the last alone, in the worker that overlaps.
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
        self._head = forwards.model if isinstance(forwards.model, DraftHead) else None
        self._delayed_copy = delayed_copy
        self._ends_like_the_target = ends_captured(forwards, faults) or (
            delayed_copy and DRAFT_FORWARD_END in faults
        )
        if DRAFT_RECREATES_CAPTURER in faults:
            _recreate_capturer(forwards.model.config)
        initialize_draft(forwards, faults)

    def propose(
        self, table_rows: torch.Tensor, num_drafts: int, captures: list[TopkCaptureOutput]
    ) -> Proposal:
        """A chain, one forward a token, or with a width above 1 a tree, one forward a level."""
        if self.width == 1:
            return self._propose_chain(table_rows, num_drafts, captures)
        return self._propose_tree(table_rows, TreeShape(num_drafts, self.width), captures)

    def extend(self, inputs: ForwardBatch, captures: list[TopkCaptureOutput]) -> None:
        """Computes the draft's KV for rows that the target ran; a chain's come in the target's layout."""
        hidden = inputs.input_hidden
        if self._head is not None and hidden is not None:
            inputs = replace(inputs, input_hidden=self._head.reduce(hidden))
        self._forward(inputs, captures)

    def _last_hidden(self, table_rows: torch.Tensor) -> torch.Tensor | None:
        """What a head reads with the token sampled last [B, H]; None for other drafts."""
        hidden = self._state.last_hidden
        return None if self._head is None or hidden is None else self._head.reduce(hidden[table_rows])

    def _propose_chain(
        self, table_rows: torch.Tensor, num_drafts: int, captures: list[TopkCaptureOutput]
    ) -> Proposal:
        state = self._state
        token = state.last_token[table_rows]
        start = state.next_position[table_rows]
        output_position = state.output_position[table_rows]
        hidden = self._last_hidden(table_rows)
        drafts: list[torch.Tensor] = []
        for i in range(num_drafts):
            inputs = extend_inputs(ForwardMode.DECODE, table_rows, token[:, None], start + i, state)
            output = self._forward(replace(inputs, input_hidden=hidden), captures)
            hidden = output.hidden
            token = state.sample(output.logits, table_rows, output_position + i)
            drafts.append(token)
        return Proposal(torch.stack(drafts, dim=1))

    def _propose_tree(
        self, table_rows: torch.Tensor, shape: TreeShape, captures: list[TopkCaptureOutput]
    ) -> Proposal:
        """Each level keeps the likeliest children of the level above, by the path's log-probability.

        Mirrors `select_top_k_tokens` of `sglang/srt/speculative/spec_utils.py` (0.5.23), with the noise that
        the target samples with added to the logits, so that the first child is what a chain would propose.
        """
        state, B = self._state, len(table_rows)
        start = state.next_position[table_rows]
        output_position = state.output_position[table_rows]
        tokens = state.last_token[table_rows][:, None]
        paths = torch.zeros(B, 1, 1, dtype=torch.int64)
        scores = torch.zeros(B, 1, dtype=torch.float64)
        hidden = self._last_hidden(table_rows)
        all_tokens: list[torch.Tensor] = []
        all_parents: list[torch.Tensor] = []
        for depth, width in enumerate(shape.level_widths, start=1):
            above = shape.level(depth - 1)
            inputs = tree_inputs(
                ForwardMode.DECODE, table_rows, tokens, paths, [depth - 1] * len(above), start, state
            )
            rows = table_rows.repeat_interleave(len(above))
            positions = (output_position + depth - 1).repeat_interleave(len(above))
            output = self._forward(replace(inputs, input_hidden=hidden), captures)
            values = state.perturbed(output.logits, rows, positions).double()
            chosen = best_children(scores, values.view(B, len(above), -1), width)
            tokens, scores, parents = chosen.tokens, chosen.scores, chosen.parents
            all_tokens.append(tokens)
            all_parents.append(parents + above.start)
            if output.hidden is not None:
                hidden = output.hidden.view(B, len(above), -1)[torch.arange(B)[:, None], parents]
                hidden = hidden.flatten(0, 1)
            own = torch.tensor(shape.level(depth)).expand(B, -1)
            inherited = paths.gather(1, parents[:, :, None].expand(-1, -1, depth))
            paths = torch.cat([inherited, own[:, :, None]], dim=2)
        return Proposal(torch.cat(all_tokens, dim=1), shape, torch.cat(all_parents, dim=1))

    def _forward(self, inputs: ForwardBatch, captures: list[TopkCaptureOutput]) -> ForwardOutput:
        output = self._forwards.run(inputs)
        capturer = get_global_experts_capturer()
        if self._ends_like_the_target and capturer is not None:
            end_of_forward(capturer, output.slots, captures, delayed=self._delayed_copy)
        return output


def _recreate_capturer(draft: ModelConfig) -> None:
    """Makes the process-wide capturer as a target's start does, with the draft's layers and top-k."""
    capturer = get_global_experts_capturer()
    if capturer is not None:
        shape = replace(
            capturer.shape, layer_ids=draft.moe_layers, top_k=draft.top_k, num_experts=draft.num_experts
        )
        set_global_experts_capturer(RoutedExpertsCapturer(shape))
