"""Chooses a prefill and a decode worker for each request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from moeinspect.runtime.disagg.messages import RoutedRequest
from moeinspect.runtime.records import PromptRequest


def route(
    requests: Iterable[tuple[PromptRequest, int]], prefill: Sequence[int], decode: Sequence[int]
) -> list[RoutedRequest]:
    """Gives each (prompt, seed) to the workers that have been given the fewest tokens so far.

    A prefill worker counts prompt tokens, a decode worker prompt tokens and those that may be sampled, since
    it holds the KV of both. The first of equals wins, so the choice depends on the order of the requests
    alone. A request that samples nothing has no decode worker.
    """
    prefill_load = dict.fromkeys(prefill, 0)
    decode_load = dict.fromkeys(decode, 0)
    routed = []
    for prompt, seed in requests:
        prompt_len = len(prompt.prompt_ids)
        to_prefill = _least_loaded(prefill_load)
        prefill_load[to_prefill] += prompt_len
        to_decode = None
        if prompt.max_new_tokens > 0:
            to_decode = _least_loaded(decode_load)
            decode_load[to_decode] += prompt_len + prompt.max_new_tokens
        routed.append(RoutedRequest(prompt, seed, to_prefill, to_decode))
    return routed


def _least_loaded(load: dict[int, int]) -> int:
    return min(load, key=lambda index: (load[index], index))
