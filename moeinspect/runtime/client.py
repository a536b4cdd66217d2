"""The side that asked: puts the pieces of each answer together, and goes away when it has seen enough."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from moeinspect.runtime.answers import Answer
from moeinspect.runtime.records import PromptRequest, RequestKey


class Client:
    """Requests that were asked for and have not been answered in full."""

    def __init__(self, prompts: Iterable[PromptRequest]) -> None:
        self._prompts = {prompt.key: prompt for prompt in prompts}
        self._tokens: dict[RequestKey, list[int]] = {key: [] for key in self._prompts}
        self._to_abort = [prompt.key for prompt in self._prompts.values() if prompt.abort_after == 0]

    @property
    def is_waiting(self) -> bool:
        """Whether an answer is still to come."""
        return bool(self._prompts)

    def prompt(self, key: RequestKey) -> PromptRequest:
        """What was asked under `key`."""
        return self._prompts[key]

    def take(self, answer: Answer) -> None:
        """One more piece of an answer; without streaming the only one."""
        tokens, limit = self._tokens[answer.key], self._prompts[answer.key].abort_after
        had = len(tokens)
        tokens += answer.new_tokens
        if limit is not None and had < limit <= len(tokens) and answer.ended is None:
            self._to_abort.append(answer.key)

    def take_aborts(self) -> list[RequestKey]:
        """Requests whose client has gone away since the last call."""
        aborts, self._to_abort = self._to_abort, []
        return [key for key in aborts if key in self._prompts]

    def end(self, key: RequestKey) -> tuple[PromptRequest, NDArray[np.int32]]:
        """The request's last piece is here: what was asked, and all of its output tokens."""
        return self._prompts.pop(key), np.asarray(self._tokens.pop(key), dtype=np.int32)
