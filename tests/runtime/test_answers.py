"""Samples, requests without rows and streamed answers, in one process and in several."""

import functools
import random
from dataclasses import replace

import numpy as np
import pytest
from runtime_harness import DRAFT, RandomDelays, assert_identical, requests, run, target_only

from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.engine import LocalRuntime

PROMPTS = tuple(requests(5, seed=7))
WAYS = [{}, {"disagg": True}, {"disagg": True, "prefill_workers": 2, "decode_workers": 2}]
PLAIN = RunConfig()
FREE = tuple(replace(prompt, max_new_tokens=40, ignore_eos=True) for prompt in PROMPTS)
ways = pytest.mark.parametrize("way", WAYS, ids=["unified", "disagg", "2x2"])


@functools.cache
def expected(prompts, config=PLAIN):
    return target_only(config, prompts)


@pytest.mark.quick(2)
@ways
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_samples_of_one_request_are_told_apart(way, stream):
    prompts = [replace(prompt, sample=sample, seed=sample) for prompt in PROMPTS[:3] for sample in range(3)]
    config = RunConfig(temperature=1.0, stream=stream)
    seen = run(replace(config, **way), prompts)
    assert_identical(seen, expected(tuple(prompts), replace(config, stream=False)))
    assert {ended.key for ended in seen.values()} == {prompt.key for prompt in prompts}


@pytest.mark.quick(2)
@ways
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_requests_that_did_not_ask_get_their_tokens_and_no_rows(way, stream):
    asked = {prompt.id: i % 2 == 0 for i, prompt in enumerate(PROMPTS)}
    prompts = [replace(prompt, return_routed_experts=asked[prompt.id]) for prompt in PROMPTS]
    seen = run(RunConfig(stream=stream, **way), prompts)
    want = expected(PROMPTS)
    assert_identical({k: v for k, v in seen.items() if asked[k]}, {k: v for k, v in want.items() if asked[k]})
    for name, ended in seen.items():
        assert ended.has_routed_experts == asked[name]
        assert ended.output_ids.tolist() == want[name].output_ids.tolist()
        assert ended.expert_ids.shape == want[name].expert_ids.shape
        if not asked[name]:
            assert (ended.expert_ids == np.iinfo(ended.expert_ids.dtype).max).all()
            assert ended.expert_ids.dtype == want[name].expert_ids.dtype
            assert ended.weights.shape == ended.expert_ids.shape and (ended.step == -1).all()


@pytest.mark.quick(2)
@ways
@pytest.mark.parametrize("draft", [None, DRAFT], ids=["plain", "draft"])
def test_stops_end_a_request_where_target_only_ends_it(way, draft):
    ended = expected(FREE)
    with LocalRuntime(RunConfig()) as runtime:
        texts = {name: runtime.decode(one.output_ids[4:7].tolist()) for name, one in ended.items()}
    prompts = [
        replace(prompt, stop=(texts[prompt.id],))
        if i % 2
        else replace(prompt, stop_token_ids=(int(ended[prompt.id].output_ids[5]),))
        for i, prompt in enumerate(FREE)
    ]
    want = expected(tuple(prompts))
    assert {one.finish_reason for one in want.values()} == {"stop"}
    assert_identical(run(RunConfig(draft=draft, **way), prompts), want)


@pytest.mark.quick(2)
@ways
def test_a_request_for_no_token_returns_every_prompt_row(way):
    prompts = [replace(prompt, max_new_tokens=0) if i % 2 else prompt for i, prompt in enumerate(PROMPTS)]
    seen = run(RunConfig(**way), prompts)
    assert_identical(seen, expected(tuple(prompts)))
    whole = expected(PROMPTS)
    for prompt in prompts[1::2]:
        rows, prompt_len = seen[prompt.id].expert_ids, len(prompt.prompt_ids)
        assert rows.tolist() == whole[prompt.id].expert_ids[:prompt_len].tolist()
        assert seen[prompt.id].finish_reason == "length" and len(seen[prompt.id].output_ids) == 0


@pytest.mark.quick(3)
@ways
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("abort_after", [0, 1, 4])
def test_a_client_that_goes_away_gets_what_was_done_and_disturbs_nobody(way, overlap, abort_after):
    whole = expected(FREE)
    prompts = [replace(p, abort_after=abort_after) if i % 2 else p for i, p in enumerate(FREE)]
    seen = run(RunConfig(overlap=overlap, **way), prompts)
    assert_identical({p.id: seen[p.id] for p in FREE[::2]}, {p.id: whole[p.id] for p in FREE[::2]})
    for prompt in prompts[1::2]:
        have, want = seen[prompt.id], whole[prompt.id]
        num_tokens = len(have.output_ids)
        assert have.finish_reason == "abort" and abort_after <= num_tokens < 40
        assert have.output_ids.tolist() == want.output_ids[:num_tokens].tolist()
        if num_tokens:
            assert len(have.expert_ids) == len(prompt.prompt_ids) + num_tokens - 1
        assert have.expert_ids.tobytes() == want.expert_ids[: len(have.expert_ids)].tobytes()
        assert (have.step >= 0).all()


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(3))
@ways
def test_aborts_at_any_moment_leave_no_slot_behind(way, seed):
    """A slot that was lost would fail the workers' own check, or starve the rest."""
    rng = random.Random(seed)
    prompts = [
        replace(prompt, abort_after=rng.choice([None, 0, 1, 2, 3]), return_routed_experts=rng.random() < 0.7)
        for prompt in requests(14, seed=seed)
    ]
    config = RunConfig(max_running_requests=3, temperature=1.0, seed=seed, **way)
    seen = run(config, prompts, jitter=RandomDelays(seed))
    want = expected(tuple(requests(14, seed=seed)), RunConfig(temperature=1.0, seed=seed))
    for name, have in seen.items():
        tokens = want[name].output_ids.tolist()
        assert have.output_ids.tolist() == tokens[: len(have.output_ids)]
        if have.finish_reason != "abort":
            assert len(have.output_ids) == len(tokens)
        if have.has_routed_experts:
            assert have.expert_ids.tobytes() == want[name].expert_ids[: len(have.expert_ids)].tobytes()
