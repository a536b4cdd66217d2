"""A request as the scheduler sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moeinspect.runtime.records import PromptRequest, RequestKey

if TYPE_CHECKING:  # both know requests
    from moeinspect.runtime.capture.collector import CollectedRows
    from moeinspect.runtime.memory.radix_cache import RadixNode

NO_SLOTS: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
NO_PAGES: NDArray[np.bool_] = np.zeros(0, dtype=bool)

_EMPTY_TOKENS = 32
"""Tokens without text (special ones) that a stop string may be spread over."""

Decode = Callable[[Sequence[int]], str]
"""Text of token ids."""


@dataclass(slots=True, eq=False)
class Request:
    """Host-side state of one request.

    `fill_ids` are the tokens that a prefill has to put into the KV cache: the prompt, and after a retraction
    the outputs so far as well. `prefilled_len` counts those of them that were scheduled or found in the
    prefix cache, `computed_len` the positions whose KV is known to be there. `inflight` counts steps that
    were launched and not yet processed, `inflight_samples` those of them that add output tokens. `slots`
    holds the KV slot of every position so far, `owned` says of each page whether it is the request's own
    and not the prefix cache's. `kept_rows` were computed under weights that have been replaced since;
    `rows_set_aside` are those from position 0 on that it had when its slots were taken.
    """

    prompt: PromptRequest
    seed: int
    eos_token_ids: frozenset[int]
    decode: Decode
    table_row: int = -1
    slots: NDArray[np.int64] = field(default_factory=lambda: NO_SLOTS)
    owned: NDArray[np.bool_] = field(default_factory=lambda: NO_PAGES)
    cache_node: RadixNode | None = None
    fill_ids: tuple[int, ...] = ()
    prefilled_len: int = 0
    computed_len: int = 0
    inflight: int = 0
    inflight_samples: int = 0
    output_ids: list[int] = field(default_factory=list)
    sampled_len: int = 0
    finish_reason: str | None = None
    is_collected: bool = False
    is_retracting: bool = False
    num_drafted: int = 0
    num_accepted: int = 0
    cached_tokens: int = 0
    num_retractions: int = 0
    last_hidden: NDArray[np.float32] | None = None
    """The target's hidden states of the last prompt token, for a draft head in another process."""
    kept_rows: list[CollectedRows] = field(default_factory=list)
    rows_set_aside: CollectedRows | None = None
    row_versions: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.fill_ids = self.prompt.prompt_ids

    @property
    def key(self) -> RequestKey:
        """Id and sample."""
        return self.prompt.key

    @property
    def prompt_len(self) -> int:
        """Number of prompt tokens P."""
        return len(self.prompt.prompt_ids)

    @property
    def fill_len(self) -> int:
        """Tokens that the present prefill ends with."""
        return len(self.fill_ids)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Prompt and output tokens so far."""
        return (*self.prompt.prompt_ids, *self.output_ids)

    @property
    def is_prefilled(self) -> bool:
        """Whether every token of `fill_ids` has been scheduled."""
        return self.prefilled_len == self.fill_len

    @property
    def samples(self) -> bool:
        """Whether output tokens are wanted at all."""
        return self.prompt.max_new_tokens > 0

    @property
    def is_finished(self) -> bool:
        """Whether the last output token has been processed."""
        return self.finish_reason is not None

    @property
    def next_position(self) -> int:
        """Position at which the last processed output token will be fed."""
        return self.prompt_len + len(self.output_ids) - 1

    @property
    def fill_output_position(self) -> int:
        """Output position, for sampling, of the token that the present prefill ends with."""
        return self.prompt.output_start + self.fill_len - self.prompt_len

    @property
    def num_fed(self) -> int:
        """Tokens that were fed: all but the last sampled one, or the whole prompt if none was sampled."""
        return self.next_position if self.output_ids else self.prompt_len

    @property
    def may_need_decode(self) -> bool:
        """Whether another step can be needed: every step in flight adds at least one token."""
        return (
            self.is_prefilled
            and not self.is_finished
            and not self.is_retracting
            and len(self.output_ids) + self.inflight_samples < self.prompt.max_new_tokens
        )

    def append_outputs(self, tokens: list[int]) -> int:
        """Appends sampled tokens up to the one that ends the request; returns how many were kept.

        An accepted run may hold a stop in its middle: what was sampled behind it is dropped.
        """
        self.sampled_len += len(tokens)
        for kept, token in enumerate(tokens, start=1):
            self.output_ids.append(token)
            if self._stops_at(token):
                self.finish_reason = "stop"
            elif len(self.output_ids) == self.prompt.max_new_tokens:
                self.finish_reason = "length"
            if self.is_finished:
                return kept
        return len(tokens)

    def retracted(self) -> None:
        """Its KV is gone: everything fed so far has to be computed again, with the last token at the end."""
        self.fill_ids = self.token_ids
        self.prefilled_len = self.computed_len = 0
        self.is_retracting = False
        self.num_retractions += 1

    def keep_rows(self) -> None:
        """The weights are about to change: rows that were computed so far stay as they are."""
        kept, rows = sum(len(part) for part in self.kept_rows), self.rows_set_aside
        if rows is not None and len(rows) > kept:
            self.kept_rows.append(rows.between(kept, len(rows)))
        self.rows_set_aside = None

    def note_computed(self, end: int, version: int) -> None:
        """Positions up to `end` have their KV; those that are new were computed by weights `version`."""
        self.computed_len = max(self.computed_len, end)
        self.row_versions.extend([version] * (end - len(self.row_versions)))

    def versions_of_rows(self, start: int, end: int) -> NDArray[np.uint16]:
        """The weight version that first computed each position [end - start]."""
        known = self.row_versions[start:end]
        last = known[-1] if known else 0
        return np.asarray(known + [last] * (end - start - len(known)), dtype=np.uint16)

    def _stops_at(self, token: int) -> bool:
        if token in self.prompt.stop_token_ids:
            return True
        if token in self.eos_token_ids and not self.prompt.ignore_eos:
            return True
        if not self.prompt.stop:
            return False
        # The newest token ends the text: a stop string lies in the last tokens, of a byte or more each.
        longest = max(len(stop.encode()) for stop in self.prompt.stop)
        tail = self.decode(self.output_ids[-(longest + _EMPTY_TOKENS) :])
        return any(stop in tail for stop in self.prompt.stop)
