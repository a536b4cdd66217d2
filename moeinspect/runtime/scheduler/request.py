"""A request as the scheduler sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from moeinspect.runtime.records import PromptRequest

NO_SLOTS: NDArray[np.int64] = np.zeros(0, dtype=np.int64)


@dataclass(slots=True, eq=False)
class Request:
    """Host-side state of one request.

    `prefilled_len` counts prompt tokens that were scheduled, `inflight` steps that were launched and not
    yet processed, `inflight_samples` those of them that add output tokens. `slots` holds the KV slot of
    every position the request may ever reach.
    """

    prompt: PromptRequest
    seed: int
    eos_token_ids: frozenset[int]
    table_row: int = -1
    slots: NDArray[np.int64] = field(default_factory=lambda: NO_SLOTS)
    prefilled_len: int = 0
    inflight: int = 0
    inflight_samples: int = 0
    output_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    is_collected: bool = False
    num_drafted: int = 0
    num_accepted: int = 0
    cached_tokens: int = 0
    num_retractions: int = 0
    last_hidden: NDArray[np.float32] | None = None
    """The target's hidden states of the last prompt token, for a draft head in another process."""

    @property
    def prompt_len(self) -> int:
        """Number of prompt tokens P."""
        return len(self.prompt.prompt_ids)

    @property
    def is_prefilled(self) -> bool:
        """Whether every prompt token has been scheduled."""
        return self.prefilled_len == self.prompt_len

    @property
    def is_finished(self) -> bool:
        """Whether the last output token has been processed."""
        return self.finish_reason is not None

    @property
    def next_position(self) -> int:
        """Position at which the last processed output token will be fed."""
        return self.prompt_len + len(self.output_ids) - 1

    @property
    def may_need_decode(self) -> bool:
        """Whether another step can be needed: every step in flight adds at least one token."""
        return (
            self.is_prefilled
            and not self.is_finished
            and len(self.output_ids) + self.inflight_samples < self.prompt.max_new_tokens
        )

    def append_outputs(self, tokens: list[int]) -> int:
        """Appends sampled tokens up to the one that ends the request; returns how many were kept."""
        for kept, token in enumerate(tokens, start=1):
            self.output_ids.append(token)
            if token in self.eos_token_ids:
                self.finish_reason = "stop"
            elif len(self.output_ids) == self.prompt.max_new_tokens:
                self.finish_reason = "length"
            if self.is_finished:
                return kept
        return len(tokens)
