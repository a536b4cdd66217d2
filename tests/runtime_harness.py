"""Runs the local runtime in tests and compares what comes out of two runs."""

import functools
import random
import time
from dataclasses import fields, replace

import numpy as np

from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.engine import LocalRuntime
from moeinspect.runtime.records import PromptRequest
from moeinspect.runtime.resolve import OWN_PROMPTS, resolve
from moeinspect.runtime.scheduler.policy import SchedulePolicy

DRAFT = "builtin:tiny-draft"


def requests(count=6, seed=0, vocab=256, max_prompt=40, max_new=14):
    """Prompts of 1 to `max_prompt` tokens; two of them share a prefix, one has a seed of its own."""
    rng = random.Random(seed)
    out = []
    for i in range(count):
        length = rng.randint(1, max_prompt)
        ids = tuple(rng.randrange(vocab) for _ in range(length))
        if i == 1:
            ids = (*out[0].prompt_ids[: max(1, length // 2)], *ids)[:max_prompt]
        own_seed = 99 if i == 2 else None
        out.append(PromptRequest(f"r{i}", ids, rng.randint(1, max_new), seed=own_seed))
    return out


def run(config, prompts, **hooks):
    """The ended requests by id (by key, if not the first sample), with weights and margins recorded."""
    config, _ = resolve(replace(config, weights=True, margins=True), frozenset({OWN_PROMPTS}))
    with LocalRuntime(config, **hooks) as runtime:
        return {ended.key if ended.sample else ended.id: ended for ended in runtime.generate(prompts)}


def target_only(config, prompts):
    """The same prompts without anything that could go wrong; run once a process, so not to be changed."""
    plain = RunConfig(
        model=config.model,
        target_only=True,
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        ignore_eos=config.ignore_eos,
        seed=config.seed,
        dtype=config.dtype,
        threads=config.threads,
    )
    return dict(_target_only(plain, tuple(prompts)))


@functools.cache
def _target_only(plain, prompts):
    ended = run(plain, prompts)
    for one in ended.values():
        for field in fields(one):
            value = getattr(one, field.name)
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
    return ended


def assert_identical(seen, expected):
    """Tokens, ids, weights and margins of every request are the same to the bit."""
    assert seen.keys() == expected.keys()
    for request_id, want in expected.items():
        have = seen[request_id]
        assert have.output_ids.tolist() == want.output_ids.tolist(), request_id
        assert have.finish_reason == want.finish_reason
        for name in ("expert_ids", "weights", "margin"):
            a, b = getattr(have, name), getattr(want, name)
            assert a.shape == b.shape, (request_id, name)
            assert a.tobytes() == b.tobytes(), (request_id, name, np.argwhere(a != b)[:5])


class RandomPolicy(SchedulePolicy):
    """Arbitrary chunk sizes, order of prefill and decode, and subsets of requests."""

    def __init__(self, seed, largest_chunk=64):
        super().__init__(largest_chunk)
        self._rng = random.Random(seed)
        self._largest_chunk = largest_chunk

    def prefill_next(self):
        return self._rng.random() < 0.6

    def chunk_budget(self):
        return self._rng.randint(1, self._largest_chunk)

    def select_decode(self, requests):
        return self._rng.sample(list(requests), self._rng.randint(1, len(requests)))


class RandomDelays:
    """Sleeps up to `most` seconds at a stream's records, waits and operations."""

    def __init__(self, seed, most=0.002):
        self._seed = seed
        self._most = most
        self._rng = random.Random(seed)

    def __call__(self, _kind):
        time.sleep(self._rng.random() * self._most)
