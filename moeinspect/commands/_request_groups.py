"""What the requests of a run asked for, as the trace records it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.records import PromptRequest

OPTIONS = "request_options"
"""Where `run_config` has it."""

OF_THE_RUN = ("max_new_tokens", "ignore_eos", "stop")
"""What a request takes from the run's options if it says nothing."""


def request_groups(config: RunConfig, requests: Iterable[PromptRequest]) -> list[dict[str, Any]]:
    """The requests in the order in which they came, those that ask for the same in one entry.

    Each entry has `ids`, `n` if there is more than one sample, and what they ask for otherwise than the run:
    `max_new_tokens`, `ignore_eos`, `stop`, `stop_token_ids`, `abort_after`.
    """
    samples: dict[str, int] = {}
    first: dict[str, PromptRequest] = {}
    for request in requests:
        samples[request.id] = samples.get(request.id, 0) + 1
        first.setdefault(request.id, request)

    def asked(request: PromptRequest) -> dict[str, Any]:
        values = {name: getattr(request, name) for name in OF_THE_RUN}
        options = {name: value for name, value in values.items() if value != getattr(config, name)}
        options |= {"n": samples[request.id]} if samples[request.id] > 1 else {}
        options |= {"stop_token_ids": request.stop_token_ids} if request.stop_token_ids else {}
        return options | ({} if request.abort_after is None else {"abort_after": request.abort_after})

    return [
        {"ids": [request.id for request in same]} | options
        for options, same in ((key, list(group)) for key, group in groupby(first.values(), asked))
    ]
