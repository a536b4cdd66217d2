"""Requests and switches that bring out faults which ordinary requests do not meet, drawn for one run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from confusion_table.scenes import Scene
from moeinspect.runtime.builtin_names import NGRAM
from moeinspect.runtime.faults import (
    BATCH_INDEX_SWAP,
    PREFILL_ONLY_SHORT,
    STALE_SLOT,
    SURPLUS_AFTER_STOP,
)
from moeinspect.runtime.memory.page_allocator import PAGE_SIZE

Prompt = dict[str, Any]
Switches = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Trigger:
    """`prompts` draws requests of a model with so many token ids; `switches` are named beside those drawn.

    `switches` gets those drawn, and the scene with these prompts.
    """

    prompts: Callable[[random.Random, int], Iterator[Prompt]]
    switches: Callable[[random.Random, Mapping[str, Any], Scene], Switches]


def _tokens(rng: random.Random, vocab: int, length: int) -> list[int]:
    return [rng.randrange(vocab) for _ in range(length)]


def _families(rng: random.Random, vocab: int) -> Iterator[Prompt]:
    """Prompts of a few families that begin alike, in an order that comes back to each."""
    heads = [_tokens(rng, vocab, rng.randint(3 * PAGE_SIZE, 7 * PAGE_SIZE)) for _ in range(rng.randint(2, 4))]
    for turn in range(rng.randint(4, 5)):
        for family in rng.sample(range(len(heads)), len(heads)):
            ids = heads[family] + _tokens(rng, vocab, rng.randint(1, 2 * PAGE_SIZE))
            yield {"id": f"t{turn}-{family}", "input_ids": ids, "max_new_tokens": rng.randint(1, 8)}


def _few_slots(rng: random.Random, drawn: Mapping[str, Any], scene: Scene) -> Switches:
    """KV slots for one request or two, so that what is cached has to go to the host and come back."""
    lookahead = 2 * int(drawn.get("num_draft_tokens", 4))
    return {
        "max_running_requests": rng.choice((1, 1, 2)),
        "host_kv_slots": rng.choice((512, 1024, 2048)),
        "num_kv_slots": scene.longest + lookahead + rng.randint(0, 1) * PAGE_SIZE,
    }


def _stops(rng: random.Random, vocab: int) -> Iterator[Prompt]:
    """Each request has stop tokens of its own, enough that one comes up in every few."""
    for number in range(rng.randint(8, 14)):
        stops = rng.sample(range(vocab), vocab // rng.randint(4, 8))
        ids = _tokens(rng, vocab, rng.randint(1, 30))
        output = rng.randint(10, 24)
        yield {"id": f"s{number}", "input_ids": ids, "max_new_tokens": output, "stop_token_ids": stops}


def _good_draft(rng: random.Random, drawn: Mapping[str, Any], scene: Scene) -> Switches:
    """A draft that is often right, several tokens at a time."""
    good = [name for name in scene.drafts if name != NGRAM]
    one: Switches = {"num_draft_tokens": rng.randint(max(3, int(drawn.get("draft_topk", 1))), 7)}
    if drawn.get("draft") == NGRAM and good:
        one["draft"] = rng.choice(good)
    return one


def _no_output(rng: random.Random, vocab: int) -> Iterator[Prompt]:
    """Some requests sample nothing."""
    number_of = rng.randint(3, 9)
    silent = set(rng.sample(range(number_of), rng.randint(1, number_of)))
    for number in range(number_of):
        ids = _tokens(rng, vocab, rng.randint(2, 60))
        output = 0 if number in silent else rng.randint(1, 12)
        yield {"id": f"p{number}", "input_ids": ids, "max_new_tokens": output}


def _opted_out(rng: random.Random, vocab: int) -> Iterator[Prompt]:
    """Requests that end together, some of which do not ask for their rows."""
    output, length = rng.randint(2, 10), rng.randint(2, 16)
    number_of = rng.randint(5, 10)
    silent = set(rng.sample(range(number_of - 1), rng.randint(1, number_of // 2)))
    for number in range(number_of):
        one = {"id": f"o{number}", "input_ids": _tokens(rng, vocab, length), "max_new_tokens": output}
        yield one | ({"return_routed_experts": False} if number in silent else {})


def _together(rng: random.Random, drawn: Mapping[str, Any], scene: Scene) -> Switches:
    return {"max_running_requests": rng.randint(3, 8)}


def _nothing(rng: random.Random, drawn: Mapping[str, Any], scene: Scene) -> Switches:
    return {}


TRIGGERS = {
    STALE_SLOT: Trigger(_families, _few_slots),
    SURPLUS_AFTER_STOP: Trigger(_stops, _good_draft),
    PREFILL_ONLY_SHORT: Trigger(_no_output, _nothing),
    BATCH_INDEX_SWAP: Trigger(_opted_out, _together),
}
"""By the fault that they bring out."""
