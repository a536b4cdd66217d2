"""Every kind of draft leaves tokens and rows what they are without one, to the bit."""

import functools

import pytest
from runtime_harness import DRAFT, RandomDelays, RandomPolicy, assert_identical, requests, run, target_only

from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.records import PromptRequest

SAMPLED = {"temperature": 1.0, "top_p": 0.95, "top_k": 100, "seed": 3}
LOOP = tuple([7, 11, 13, 17] * 5)
PROMPTS = (*requests(), PromptRequest("loop", LOOP, 20))
"""The last prompt repeats itself, so that n-grams have something to find."""

KINDS = {
    "ngram": {"draft": "ngram"},
    "tree": {"draft": DRAFT, "draft_topk": 3, "num_draft_tokens": 8},
    "ngram-tree": {"draft": "ngram", "draft_topk": 2, "num_draft_tokens": 5},
    "nextn": {"model": "builtin:random", "draft": "builtin:random-nextn"},
    "eagle3-tree": {"model": "builtin:random", "draft": "builtin:random-eagle3", "draft_topk": 2},
    "adaptive": {"draft": DRAFT, "num_draft_tokens": 7, "adaptive_draft": True},
}


@functools.cache
def run_plain(model, sampled, dtype):
    return target_only(config(sampled, model=model, dtype=dtype), PROMPTS)


def baseline(kind, sampled, dtype="float32"):
    return run_plain(KINDS[kind].get("model", "builtin:tiny"), sampled, dtype)


def config(sampled, **options):
    return RunConfig(**{**(SAMPLED if sampled else {}), **options})


def accepted_share(seen):
    return sum(e.num_accepted for e in seen.values()) / sum(e.num_drafted for e in seen.values())


@pytest.mark.quick(6)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "sampled, options",
    [
        (False, {}),
        (True, {}),
        (False, {"overlap": False}),
        (True, {"chunked_prefill_size": 8, "max_running_requests": 3}),
        (True, {"disagg": True}),
        (False, {"graph": True}),
    ],
    ids=str,
)
def test_every_kind_of_draft_gives_the_bits_of_target_only(kind, sampled, options):
    assert_identical(run(config(sampled, **KINDS[kind], **options), PROMPTS), baseline(kind, sampled))


@pytest.mark.quick(2)
@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_gives_the_bits_of_target_only(kind):
    seen = run(config(True, **KINDS[kind], dtype="bfloat16"), PROMPTS)
    assert_identical(seen, baseline(kind, True, "bfloat16"))


@pytest.mark.quick(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_random_schedules_give_the_bits_of_target_only(kind, seed):
    options = {**KINDS[kind], "overlap": seed % 2 == 0}
    seen = run(config(seed > 0, **options), PROMPTS, policy=RandomPolicy(seed))
    assert_identical(seen, baseline(kind, seed > 0))


@pytest.mark.quick(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("disagg", [False, True], ids=["unified", "disagg"])
def test_random_delays_on_every_stream_change_nothing(kind, disagg):
    seen = run(config(True, **KINDS[kind], disagg=disagg), PROMPTS, jitter=RandomDelays(1))
    assert_identical(seen, baseline(kind, True))


@pytest.mark.quick(2)
@pytest.mark.parametrize("kind", KINDS)
def test_cached_prefixes_and_retractions_give_the_bits_of_target_only(kind):
    options = {"model": KINDS[kind].get("model", "builtin:tiny"), "ignore_eos": True}
    longest = max((prompt.prompt_ids for prompt in PROMPTS), key=len)
    prompts = [PromptRequest(f"r{i}", (*longest, i), 30) for i in range(5)]
    tight = {"prefix_cache": True, "num_kv_slots": 168, "max_running_requests": 3}
    seen = run(RunConfig(**{**options, **KINDS[kind], **tight}), prompts)
    assert any(ended.num_retractions for ended in seen.values())
    assert any(ended.cached_tokens for ended in seen.values())
    assert_identical(seen, target_only(RunConfig(**options), prompts))


@pytest.mark.parametrize("disagg", [False, True], ids=["unified", "disagg"])
def test_ngrams_of_the_prompt_are_found_in_either_process(disagg):
    text = target_only(RunConfig(ignore_eos=True), [PromptRequest("a", LOOP, 24)])["a"]
    again = PromptRequest("b", (*text.prompt_ids.tolist(), *text.output_ids.tolist()) * 2, 8)
    ended = run(RunConfig(draft="ngram", disagg=disagg, ignore_eos=True), [again])["b"]
    assert ended.num_accepted > 0


def test_a_tree_accepts_more_per_step_than_a_chain_of_its_depth():
    options = {"draft": DRAFT, "temperature": 1.0, "seed": 3, "ignore_eos": True}
    prompts = [PromptRequest(f"r{i}", tuple(range(i, i + 9)), 40) for i in range(6)]
    chain = run(RunConfig(**options, num_draft_tokens=3), prompts)
    tree = run(RunConfig(**options, num_draft_tokens=12, draft_topk=4), prompts)
    assert_identical(tree, chain)
    assert accepted_share(tree) * 12 > accepted_share(chain) * 3


def test_an_adaptive_draft_gets_shorter_where_little_is_accepted():
    prompts = [PromptRequest(f"r{i}", tuple(range(i, i + 9)), 60) for i in range(3)]
    options = {"draft": "ngram", "num_draft_tokens": 7, "ignore_eos": True, **SAMPLED}
    fixed, adaptive = (
        run(RunConfig(**options, adaptive_draft=adaptive), prompts) for adaptive in (False, True)
    )
    assert_identical(adaptive, fixed)
    drafted = [sum(e.num_drafted for e in seen.values()) for seen in (fixed, adaptive)]
    accepted = [sum(e.num_accepted for e in seen.values()) for seen in (fixed, adaptive)]
    assert drafted[1] < drafted[0] / 2
    assert accepted[1] <= accepted[0]
