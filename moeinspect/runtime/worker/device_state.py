"""Per-request state that lives on the device, so that a step can start before the last one was read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from moeinspect.runtime.memory.kv_cache import DUMMY_SLOT
from moeinspect.runtime.sampling import SamplingParams, sample


class DeviceState:
    """Rows of the request table; touched on the compute stream only.

    For table row r: `last_token[r]` was sampled and not yet fed, `next_position[r]` is where it will be,
    `output_position[r]` is the number of tokens sampled so far.
    """

    def __init__(self, num_rows: int, max_len: int, params: SamplingParams) -> None:
        self.slot_table = torch.full((num_rows, max_len), DUMMY_SLOT, dtype=torch.int64)
        self.last_token = torch.zeros(num_rows, dtype=torch.int64)
        self.next_position = torch.zeros(num_rows, dtype=torch.int64)
        self.output_position = torch.zeros(num_rows, dtype=torch.int64)
        self._seeds = [0] * num_rows
        self._params = params

    def assign(self, row: int, slots: NDArray[np.int64], seed: int) -> None:
        """Gives a table row to a request: its KV slots in position order, and its sampling seed."""
        self.slot_table[row] = DUMMY_SLOT
        self.slot_table[row, : len(slots)] = torch.from_numpy(slots)
        self._seeds[row] = seed

    def begin_decode(self, row: int, prompt_len: int, first_token: int) -> None:
        """The request's prompt was computed elsewhere; `first_token` was sampled there."""
        self.last_token[row] = first_token
        self.next_position[row] = prompt_len
        self.output_position[row] = 1

    def advance(self, rows: torch.Tensor, tokens: torch.Tensor, counts: torch.Tensor) -> None:
        """`counts` [B] tokens were sampled for `rows` [B], the last of them `tokens` [B]."""
        self.last_token[rows] = tokens
        self.next_position[rows] += counts
        self.output_position[rows] += counts

    def sample(
        self, logits: torch.Tensor, rows: torch.Tensor, output_positions: torch.Tensor
    ) -> torch.Tensor:
        """Tokens [n] from logits [n, V] for these table rows [n] and output positions [n]."""
        seeds: Sequence[int] = [self._seeds[row] for row in rows.tolist()]
        return sample(logits, seeds, output_positions.tolist(), self._params)
