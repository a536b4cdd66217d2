"""Requests that share prefixes, for tests in which KV slots are short and requests end in many ways."""

import functools
import random

from runtime_harness import target_only

from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.memory.page_allocator import PAGE_SIZE
from moeinspect.runtime.records import PromptRequest

UPDATED = "builtin:tiny-updated"


def shared_prefixes(count=9, seed=0, max_new=18):
    """Prompts that begin with 0 to 3 pages of one of two texts, so that many share a prefix."""
    rng = random.Random(seed)
    heads = [tuple(rng.randrange(256) for _ in range(3 * PAGE_SIZE)) for _ in range(2)]
    prompts = []
    for i in range(count):
        head = heads[i % 2][: rng.randint(1, 3) * PAGE_SIZE]
        tail = tuple(rng.randrange(256) for _ in range(rng.randint(1, 20)))
        prompts.append(PromptRequest(f"s{i}", head + tail, rng.randint(2, max_new)))
    return prompts


PROMPTS = tuple(shared_prefixes())
TIGHT = max(len(p.prompt_ids) + p.max_new_tokens for p in PROMPTS) + 2 * PAGE_SIZE
"""KV slots for about one and a half requests: enough for each, too few for two of them."""


@functools.cache
def baseline(sampled=False):
    return target_only(config(sampled), PROMPTS)


def config(sampled=False, **options):
    sampling = {"temperature": 1.0, "top_p": 0.95, "seed": 3} if sampled else {}
    return RunConfig(**sampling, **options)


def stopped_at(prompts, place):
    """The prompts, each stopping at the token that stands at `place` of its output."""
    return [
        PromptRequest(
            p.id,
            p.prompt_ids,
            p.max_new_tokens,
            stop_token_ids=(int(baseline()[p.id].output_ids[min(place, p.max_new_tokens - 1)]),),
        )
        for p in prompts
    ]
