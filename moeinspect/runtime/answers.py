"""What a worker answers to whoever sent it requests: one message a step, lists with an entry a request."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from moeinspect.runtime.capture.collector import CollectedRows
from moeinspect.runtime.faults import BATCH_INDEX_SWAP, NO_FAULTS, ActiveFaults
from moeinspect.runtime.records import Event, RequestKey
from moeinspect.runtime.scheduler.outputs import StepOutputs
from moeinspect.runtime.scheduler.request import Request


@dataclass(frozen=True, slots=True)
class Ended:
    """What is known of a request once it has ended; counts are those of the worker that says it.

    `weight_version` [n] is that of each row, where no rows travel that carry it.
    """

    finish_reason: str
    num_drafted: int = 0
    num_accepted: int = 0
    cached_tokens: int = 0
    num_retractions: int = 0
    weight_version: NDArray[np.uint16] | None = None


@dataclass(slots=True)
class StepAnswers:
    """Answers of one step, as they travel: aligned lists with an entry for each request.

    `new_tokens` are those since the request's last entry. `ended` is None for a request that goes on.
    `routed_experts` is None for one that goes on, and for one that did not ask for its rows.
    """

    keys: list[RequestKey] = field(default_factory=list)
    new_tokens: list[list[int]] = field(default_factory=list)
    ended: list[Ended | None] = field(default_factory=list)
    routed_experts: list[CollectedRows | None] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Answer:
    """One request's entry of a `StepAnswers`."""

    key: RequestKey
    new_tokens: list[int]
    ended: Ended | None
    rows: CollectedRows | None


class AnswerWriter:
    """The worker's end. Tokens go out as steps are processed to who streams, else all with the last one."""

    def __init__(self, *, stream: bool, faults: ActiveFaults = NO_FAULTS) -> None:
        self._stream = stream
        self._aligned = BATCH_INDEX_SWAP not in faults
        self._num_sent: dict[RequestKey, int] = {}

    def write(self, outputs: StepOutputs) -> StepAnswers:
        """The answers to send for one processed step; without keys there is nothing to send."""
        answers = StepAnswers()
        for request, rows in zip(outputs.requests, outputs.routed_experts, strict=True):
            if request.is_finished or self._stream or request.prompt.abort_after is not None:
                self._add(answers, request, rows)
        return answers

    def _add(self, answers: StepAnswers, request: Request, rows: CollectedRows | None) -> None:
        key = request.key
        answers.keys.append(key)
        answers.new_tokens.append(request.output_ids[self._num_sent.get(key, 0) :])
        answers.ended.append(_ended(request))
        asked = request.prompt.return_routed_experts
        if asked or self._aligned:
            # A place in the list for those who did not ask, too: the reader goes by batch position.
            answers.routed_experts.append(rows if asked else None)
        if request.is_finished:
            self._num_sent.pop(key, None)
        else:
            self._num_sent[key] = len(request.output_ids)


def read_answers(answers: StepAnswers) -> list[Answer]:
    """The reader's end: takes the lists apart by batch position, as the tokenizer manager does upstream."""
    rows = dict(enumerate(answers.routed_experts))
    return [
        Answer(key, new_tokens, ended, rows.get(position))
        for position, (key, new_tokens, ended) in enumerate(
            zip(answers.keys, answers.new_tokens, answers.ended, strict=True)
        )
    ]


def _ended(request: Request) -> Ended | None:
    if request.finish_reason is None:
        return None
    return Ended(
        request.finish_reason,
        num_drafted=request.num_drafted,
        num_accepted=request.num_accepted,
        cached_tokens=request.cached_tokens,
        num_retractions=request.num_retractions,
        weight_version=None
        if request.prompt.return_routed_experts
        else request.versions_of_rows(0, request.num_fed),
    )
