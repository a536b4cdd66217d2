"""What a step tells the clients whose requests got something out of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from moeinspect.runtime.capture.collector import CollectedRows
from moeinspect.runtime.scheduler.request import Request


@dataclass(slots=True)
class StepOutputs:
    """One batch of answers: lists with an entry for each request, in batch order.

    `new_tokens` are the tokens that the step added. `routed_experts` is None for a request that has not
    ended, and for one that did not ask for them: the lists stay aligned (SGLang PR 26423).
    """

    requests: list[Request] = field(default_factory=list)
    new_tokens: list[list[int]] = field(default_factory=list)
    routed_experts: list[CollectedRows | None] = field(default_factory=list)

    def add(self, request: Request, new_tokens: list[int], rows: CollectedRows | None = None) -> None:
        """One request's part."""
        self.requests.append(request)
        self.new_tokens.append(new_tokens)
        self.routed_experts.append(rows)


OnOutputs = Callable[[StepOutputs], None]
"""Told after each processed step; slots of requests that ended in it may be freed from then on."""
