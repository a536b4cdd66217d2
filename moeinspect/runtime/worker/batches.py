"""Builds the device-side inputs of a forward from a scheduled batch and the device state."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from moeinspect.runtime.forward_batch import ForwardBatch, ForwardMode
from moeinspect.runtime.scheduler.batch import ScheduledBatch
from moeinspect.runtime.worker.device_state import DeviceState


def prefill_inputs(batch: ScheduledBatch, table_rows: torch.Tensor, state: DeviceState) -> ForwardBatch:
    """Chunks of prefills, as the host knows them; logits for the last row of each that is completed.

    `table_rows` [B] are those of the batch's requests.
    """
    ids: list[int] = []
    positions: list[int] = []
    row_request: list[int] = []
    logit_rows: list[int] = []
    for b, chunk in enumerate(batch.chunks):
        end = chunk.start + chunk.extend_len
        ids.extend(chunk.request.fill_ids[chunk.start : end])
        positions.extend(range(chunk.start, end))
        row_request.extend([b] * chunk.extend_len)
        if chunk.samples:
            logit_rows.append(len(ids) - 1)
    positions_N = torch.tensor(positions)
    row_request_N = torch.tensor(row_request)
    slot_table = state.slot_table[table_rows]
    return ForwardBatch(
        mode=ForwardMode.PREFILL,
        input_ids=torch.tensor(ids),
        positions=positions_N,
        out_slots=slot_table[row_request_N, positions_N],
        row_request=row_request_N,
        extend_lens=tuple(chunk.extend_len for chunk in batch.chunks),
        slot_table=slot_table,
        logit_rows=torch.tensor(logit_rows, dtype=torch.int64),
    )


def tree_inputs(
    mode: ForwardMode,
    table_rows: torch.Tensor,
    ids: torch.Tensor,
    paths: torch.Tensor,
    depths: Sequence[int],
    start: torch.Tensor,
    state: DeviceState,
) -> ForwardBatch:
    """Nodes of a tree of drafts for each request: `ids` [B, n] at levels `depths` [n]. Logits for all rows.

    `paths` [B, n, d] are the nodes from the root to each node, which repeats past its own level. Node i of a
    request has the KV slot of position `start` + i and the rotary position `start` + its level. Each row is
    a request of its own here, whose slot table holds the prefix and the node's ancestors in order of their
    positions: so the attention's key blocks hold what they hold when the path is decoded token by token.
    """
    B, n = ids.shape
    slots = state.slot_table[table_rows]
    path_slots = slots.gather(1, (start[:, None, None] + paths).view(B, -1)).view(B * n, -1)
    positions = (start[:, None] + torch.tensor(depths)).view(-1)
    rows = torch.arange(B * n)
    slot_table = slots.repeat_interleave(n, dim=0)
    columns = start.repeat_interleave(n)[:, None] + torch.arange(paths.shape[2])
    slot_table.scatter_(1, columns, path_slots)
    return ForwardBatch(
        mode=mode,
        input_ids=ids.reshape(-1),
        positions=positions,
        out_slots=slot_table[rows, positions],
        row_request=rows,
        extend_lens=(1,) * (B * n),
        slot_table=slot_table,
        logit_rows=rows,
        rows_per_request=n,
    )


def extend_inputs(
    mode: ForwardMode, table_rows: torch.Tensor, ids: torch.Tensor, start: torch.Tensor, state: DeviceState
) -> ForwardBatch:
    """The same number of tokens for each request: `ids` [B, n] from positions `start` [B] on.

    Positions and tokens are read from the device state, which the host does not know yet. Logits for all
    rows.
    """
    num_requests, width = ids.shape
    positions = (start[:, None] + torch.arange(width)).reshape(-1)
    row_request = torch.arange(num_requests).repeat_interleave(width)
    slot_table = state.slot_table[table_rows]
    return ForwardBatch(
        mode=mode,
        input_ids=ids.reshape(-1),
        positions=positions,
        out_slots=slot_table[row_request, positions],
        row_request=row_request,
        extend_lens=(width,) * num_requests,
        slot_table=slot_table,
        logit_rows=torch.arange(num_requests * width),
        rows_per_request=width,
    )
