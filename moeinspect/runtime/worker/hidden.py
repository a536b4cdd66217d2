"""The target's hidden states that a draft head reads: those of the position before each row."""

from __future__ import annotations

import torch

from moeinspect.runtime.forward_batch import ForwardBatch
from moeinspect.runtime.worker.device_state import DeviceState


def hidden_before(
    hidden: torch.Tensor, inputs: ForwardBatch, table_rows: torch.Tensor, state: DeviceState
) -> torch.Tensor | None:
    """For each row of `inputs` [N, W] the hidden state of the position before; None without a head.

    `hidden` [N, W] are those of the rows themselves, `table_rows` [B] the requests, whose first rows follow
    on what the device state remembers.
    """
    if state.last_hidden is None:
        return None
    before = hidden.roll(1, dims=0)
    before[_first_rows(inputs)] = state.last_hidden[table_rows]
    return before


def remember_last_rows(
    hidden: torch.Tensor, inputs: ForwardBatch, table_rows: torch.Tensor, state: DeviceState
) -> None:
    """Keeps the hidden states of each request's last row of `inputs` in the device state."""
    if state.last_hidden is not None:
        ends = torch.tensor(inputs.extend_lens).cumsum(0) - 1
        state.last_hidden[table_rows] = hidden[ends]


def _first_rows(inputs: ForwardBatch) -> torch.Tensor:
    lens = torch.tensor(inputs.extend_lens)
    return lens.cumsum(0) - lens
