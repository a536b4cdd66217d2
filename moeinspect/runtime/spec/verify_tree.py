"""Verifies trees: one forward over root and nodes, then the accepted path moves to where a chain would be."""

from __future__ import annotations

from dataclasses import replace

import torch

from moeinspect.runtime.capture.capturer import TopkCaptureOutput
from moeinspect.runtime.faults import TREE_ROWS, ActiveFaults
from moeinspect.runtime.forward_batch import ForwardBatch, ForwardMode
from moeinspect.runtime.scheduler.batch import StepResult
from moeinspect.runtime.spec.tree import Proposal
from moeinspect.runtime.spec.verify import accept_path
from moeinspect.runtime.worker.batches import extend_inputs, tree_inputs
from moeinspect.runtime.worker.device_state import DeviceState
from moeinspect.runtime.worker.hidden import hidden_before
from moeinspect.runtime.worker.target_forwards import TargetForwards


def verify_tree(
    proposal: Proposal,
    table_rows: torch.Tensor,
    target: TargetForwards,
    state: DeviceState,
    result: StepResult,
    captures: list[TopkCaptureOutput],
    faults: ActiveFaults,
) -> ForwardBatch:
    """One forward of the target over the last token and all nodes; the accepted path is compacted.

    Returns the rows for the draft to extend by: for each request as many as a path of the tree's depth has,
    of which those past the accepted path hold the token sampled last, as filler. Upstream's layout is
    `sglang/srt/speculative/eagle_info.py` (0.5.23).
    """
    shape, parents = proposal.shape, proposal.parents
    if shape is None or parents is None:
        raise RuntimeError("a tree has a shape and parents")
    B, num_rows = len(table_rows), shape.num_nodes + 1
    start, output_position = state.next_position[table_rows], state.output_position[table_rows]
    ids = torch.cat([state.last_token[table_rows][:, None], proposal.tokens], dim=1)
    paths = shape.paths(parents)
    inputs = tree_inputs(ForwardMode.VERIFY, table_rows, ids, paths, shape.node_depths, start, state)
    output, captured = target.run(inputs, captures)
    output_positions = output_position[:, None] + torch.tensor(shape.node_depths)
    sampled = state.sample(
        output.logits, table_rows.repeat_interleave(num_rows), output_positions.reshape(-1)
    ).view(B, num_rows)
    best, accepted = accept_path(proposal.tokens, parents, shape, sampled)
    path = paths[torch.arange(B), best]
    counts = accepted + 1
    _compact(path, accepted, inputs, target, captured if TREE_ROWS not in faults else None)
    tokens = sampled.gather(1, path)
    state.advance(table_rows, tokens, counts)
    result.device_tokens, result.device_num_tokens = tokens, counts
    fed = torch.cat([ids[:, :1], tokens[:, :-1]], dim=1)
    beyond = torch.arange(shape.depth + 1) > accepted[:, None]
    fed = torch.where(beyond, tokens.gather(1, accepted[:, None]), fed)
    ran = extend_inputs(ForwardMode.VERIFY, table_rows, fed, start, state)
    if output.hidden is None or state.last_hidden is None:
        return ran
    along = output.hidden.view(B, num_rows, -1)[torch.arange(B)[:, None], path]
    before = hidden_before(along.flatten(0, 1), ran, table_rows, state)
    state.last_hidden[table_rows] = along[torch.arange(B), accepted]
    return replace(ran, input_hidden=before)


def _compact(
    path: torch.Tensor,
    accepted: torch.Tensor,
    inputs: ForwardBatch,
    target: TargetForwards,
    captured: TopkCaptureOutput | None,
) -> None:
    """Moves the accepted nodes of `path` [B, depth + 1] to the slots of positions start, start + 1, ...

    What was captured lies by slot and has to move along; without `captured` it stays behind (fault
    `tree-rows`).
    """
    B, width = path.shape
    slots = inputs.out_slots.view(B, -1)
    places = torch.arange(width).expand(B, -1)
    kept = places <= accepted[:, None]
    from_slots, to_slots = slots.gather(1, path)[kept], slots.gather(1, places)[kept]
    target.move_kv(from_slots, to_slots)
    if captured is not None:
        captured.move(from_slots, to_slots)
