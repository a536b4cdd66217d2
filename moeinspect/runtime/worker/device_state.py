"""Per-request state that lives on the device, so that a step can start before the last one was read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from moeinspect.runtime.memory.kv_cache import DUMMY_SLOT
from moeinspect.runtime.sampling import SamplingParams, perturbed


class DeviceState:
    """Rows of the request table; touched on the compute stream only.

    For table row r: `last_token[r]` was sampled and not yet fed, `next_position[r]` is where it will be,
    `output_position[r]` is the number of tokens sampled so far; `history[r]` holds the token of every
    position up to `next_position[r]`. `last_hidden[r]` are the target's hidden states of the position before
    `next_position[r]`, or of the last prompt token that was computed; zeros where they are unknown, None if
    no draft head reads them.
    """

    def __init__(
        self, num_rows: int, max_len: int, params: SamplingParams, *, hidden: torch.Tensor | None = None
    ) -> None:
        """`hidden` [num_rows, width * H] zeros: room for the hidden states that a draft head reads."""
        self.last_hidden = hidden
        # A verify step may accept a token more than it has positions for, which is then never fed.
        self.history = torch.zeros(num_rows, max_len + 1, dtype=torch.int64)
        self.slot_table = torch.full((num_rows, max_len), DUMMY_SLOT, dtype=torch.int64)
        self.last_token = torch.zeros(num_rows, dtype=torch.int64)
        self.next_position = torch.zeros(num_rows, dtype=torch.int64)
        self.output_position = torch.zeros(num_rows, dtype=torch.int64)
        self._seeds = [0] * num_rows
        self._params = params

    def assign(self, row: int, slots: NDArray[np.int64], seed: int, token_ids: Sequence[int]) -> None:
        """Gives a table row to a request: its KV slots in position order, its sampling seed, its tokens."""
        self.history[row, : len(token_ids)] = torch.tensor(token_ids)
        if self.last_hidden is not None:
            self.last_hidden[row] = 0
        self.slot_table[row] = DUMMY_SLOT
        self.slot_table[row, : len(slots)] = torch.from_numpy(slots)
        self._seeds[row] = seed

    def extend_slots(self, row: int, start: int, slots: NDArray[np.int64]) -> None:
        """The request of this table row has got more KV slots, for positions from `start` on."""
        self.slot_table[row, start : start + len(slots)] = torch.from_numpy(slots)

    def begin_decode(
        self,
        row: int,
        next_position: int,
        last_token: int,
        output_position: int,
        hidden: NDArray[np.float32] | None = None,
    ) -> None:
        """What comes before `next_position` was computed elsewhere; `last_token` was sampled there.

        `output_position` counts the tokens sampled so far. `hidden` [width * H] are the target's hidden
        states of the last prompt token, for a draft head.
        """
        if self.last_hidden is not None and hidden is not None:
            self.last_hidden[row] = torch.from_numpy(hidden)
        self.begin(*(torch.tensor([value]) for value in (row, last_token, next_position, output_position)))

    def begin(
        self,
        rows: torch.Tensor,
        tokens: torch.Tensor,
        next_positions: torch.Tensor,
        output_positions: torch.Tensor,
    ) -> None:
        """`tokens` [B] were sampled for `rows` [B] and will be fed at `next_positions` [B].

        `output_positions` [B] count the tokens sampled so far.
        """
        self.last_token[rows] = tokens
        self.next_position[rows] = next_positions
        self.output_position[rows] = output_positions
        self.history[rows, next_positions] = tokens

    def advance(self, rows: torch.Tensor, tokens: torch.Tensor, counts: torch.Tensor) -> None:
        """The first `counts` [B] of `tokens` [B, n] were sampled for `rows` [B]."""
        # What stands past a request's count is overwritten when its own token is sampled.
        positions = self.next_position[rows][:, None] + 1 + torch.arange(tokens.shape[1])
        self.history[rows[:, None], positions] = tokens
        self.last_token[rows] = tokens.gather(1, counts[:, None] - 1)[:, 0]
        self.next_position[rows] += counts
        self.output_position[rows] += counts

    def sample(
        self, logits: torch.Tensor, rows: torch.Tensor, output_positions: torch.Tensor
    ) -> torch.Tensor:
        """Tokens [n] from logits [n, V] for these table rows [n] and output positions [n]."""
        return torch.argmax(self.perturbed(logits, rows, output_positions), dim=-1)

    def perturbed(
        self, logits: torch.Tensor, rows: torch.Tensor, output_positions: torch.Tensor
    ) -> torch.Tensor:
        """The values [n, V] whose largest is the sampled token; see `sampling.perturbed`."""
        seeds: Sequence[int] = [self._seeds[row] for row in rows.tolist()]
        return perturbed(logits, seeds, output_positions.tolist(), self._params)
