"""Chooses the leaders that serve each request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from moeinspect.runtime.processes.messages import RoutedRequest
from moeinspect.runtime.records import PromptRequest


def route(
    requests: Iterable[tuple[PromptRequest, int]], prefill: Sequence[int], decode: Sequence[int]
) -> list[RoutedRequest]:
    """Gives each (prompt, seed) to the leaders that have been given the fewest tokens so far.

    One that prefills alone counts prompt tokens; who decodes counts prompt tokens and those that may be
    sampled, since it holds the KV of both. The first of equals wins, so the choice depends on the order of
    the requests alone. Without `decode` leaders, or if nothing is to be sampled, one serves all of it.
    """
    prefill_load = dict.fromkeys(prefill, 0)
    decode_load = dict.fromkeys(decode, 0)
    routed = []
    for prompt, seed in requests:
        prompt_len = len(prompt.prompt_ids)
        to_prefill = _least_loaded(prefill_load)
        in_all = prompt_len + prompt.max_new_tokens
        prefill_load[to_prefill] += prompt_len if decode else in_all
        to_decode = None
        if decode and prompt.max_new_tokens > 0:
            to_decode = _least_loaded(decode_load)
            decode_load[to_decode] += in_all
        routed.append(RoutedRequest(prompt, seed, to_prefill, to_decode))
    return routed


def _least_loaded(load: dict[int, int]) -> int:
    return min(load, key=lambda index: (load[index], index))
