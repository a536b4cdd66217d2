"""What can happen to a request on its way, and that none of it changes a bit of its rows."""

import numpy as np
import pytest
from life_harness import PROMPTS, TIGHT, UPDATED, baseline, config, stopped_at
from runtime_harness import DRAFT, RandomDelays, RandomPolicy, assert_identical, run, target_only

from moeinspect.errors import InputError
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.engine import LocalRuntime
from moeinspect.runtime.memory.page_allocator import PAGE_SIZE
from moeinspect.runtime.records import ROW_ORIGINS, PromptRequest

PREFIX_CACHE = ROW_ORIGINS.index("prefix-cache")


def total(seen, field):
    return sum(getattr(ended, field) for ended in seen.values())


@pytest.mark.quick(3)
@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    "options",
    [
        {"overlap": False},
        {"chunked_prefill_size": 8},
        {"draft": DRAFT},
        {"draft": DRAFT, "disagg": True, "chunked_prefill_size": 16},
    ],
    ids=str,
)
def test_cached_prefixes_are_used_and_change_nothing(options, sampled):
    seen = run(config(sampled, prefix_cache=True, max_running_requests=2, **options), PROMPTS)
    assert_identical(seen, baseline(sampled))
    assert total(seen, "cached_tokens") >= 4 * PAGE_SIZE
    for ended in seen.values():
        cached = ended.cached_tokens
        assert cached % PAGE_SIZE == 0 and cached < len(ended.prompt_ids)
        assert (ended.origin[:cached] == PREFIX_CACHE).all()
        assert (ended.origin[cached : len(ended.prompt_ids)] != PREFIX_CACHE).all()
        assert (ended.step >= 0).all()


def test_a_cached_row_names_the_step_and_the_slot_of_the_request_that_computed_it():
    seen = run(config(prefix_cache=True, max_running_requests=1), PROMPTS)
    computed = {}
    for ended in seen.values():  # in the order in which they ended, which is that of the prompts here
        for row in range(len(ended.expert_ids)):
            if ended.origin[row] == PREFIX_CACHE:
                assert computed[int(ended.slot[row])] == int(ended.step[row])
            else:
                computed[int(ended.slot[row])] = int(ended.step[row])
    assert total(seen, "cached_tokens") > 0


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    "options",
    [
        {"overlap": False},
        {},
        {"prefix_cache": True},
        {"prefix_cache": True, "draft": DRAFT},
        {"prefix_cache": True, "host_kv_slots": 3 * PAGE_SIZE},
        {"prefix_cache": True, "host_kv_slots": 1024, "draft": DRAFT, "chunked_prefill_size": 8},
        {"disagg": True},
        {"disagg": True, "draft": DRAFT, "prefix_cache": True, "host_kv_slots": 1024},
    ],
    ids=str,
)
def test_preempted_requests_go_on_as_if_nothing_had_happened(options):
    slots = TIGHT + (2 * 4 if "draft" in options else 0)
    seen = run(config(max_running_requests=4, num_kv_slots=slots, **options), PROMPTS)
    assert_identical(seen, baseline())
    assert total(seen, "num_retractions") > 0


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(6))
def test_random_schedules_with_few_slots_change_nothing(seed):
    options = {"draft": DRAFT if seed % 2 else None, "overlap": seed % 3 != 0}
    seen = run(
        config(
            bool(seed % 2),
            prefix_cache=seed % 4 != 3,
            host_kv_slots=[0, 64, 512][seed % 3] if seed % 4 != 3 else 0,
            max_running_requests=5,
            num_kv_slots=TIGHT + 8 + seed * PAGE_SIZE,
            **options,
        ),
        PROMPTS,
        policy=RandomPolicy(seed),
        jitter=RandomDelays(seed, most=0.0005),
    )
    assert_identical(seen, baseline(bool(seed % 2)))


def test_a_prefix_that_comes_back_from_the_host_brings_its_rows_into_other_slots():
    options = {"prefix_cache": True, "max_running_requests": 1, "num_kv_slots": TIGHT}
    with_host = run(config(host_kv_slots=4096, **options), PROMPTS)
    without = run(config(**options), PROMPTS)
    assert_identical(with_host, baseline())
    assert total(with_host, "cached_tokens") > total(without, "cached_tokens")


# Ends


@pytest.mark.quick(2)
@pytest.mark.parametrize("options", [{}, {"draft": DRAFT}, {"disagg": True, "draft": DRAFT}], ids=str)
def test_a_request_without_new_tokens_gets_a_row_for_every_prompt_token(options):
    prompts = [
        PromptRequest(p.id, p.prompt_ids, 0 if i % 2 else p.max_new_tokens) for i, p in enumerate(PROMPTS)
    ]
    seen = run(config(prefix_cache=True, max_running_requests=3, **options), prompts)
    for prompt in prompts:
        ended, want = seen[prompt.id], baseline()[prompt.id]
        if not prompt.max_new_tokens:
            assert ended.output_ids.tolist() == [] and ended.finish_reason == "length"
            assert len(ended.expert_ids) == len(prompt.prompt_ids)
        n = len(ended.expert_ids)
        assert ended.expert_ids.tobytes() == want.expert_ids[:n].tobytes()


@pytest.mark.quick(3)
@pytest.mark.parametrize("options", [{"overlap": False}, {"draft": DRAFT}, {"draft": DRAFT, "disagg": True}])
@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_stop_token_ends_a_request_also_inside_an_accepted_run(place, options):
    seen = run(config(**options), stopped_at(PROMPTS, place))
    for prompt in stopped_at(PROMPTS, place):
        ended, want = seen[prompt.id], baseline()[prompt.id]
        first = want.output_ids.tolist().index(prompt.stop_token_ids[0])
        assert ended.output_ids.tolist() == want.output_ids[: first + 1].tolist()
        assert ended.finish_reason == "stop"
        assert ended.expert_ids.tobytes() == want.expert_ids[: len(prompt.prompt_ids) + first].tobytes()


@pytest.mark.quick(2)
@pytest.mark.parametrize("options", [{}, {"draft": DRAFT}, {"draft": DRAFT, "disagg": True}])
def test_a_stop_string_ends_a_request_at_the_token_that_completes_it(options):
    with LocalRuntime(config()) as runtime:
        decode = runtime.decode
    prompts = []
    for p in PROMPTS:
        text = decode(baseline()[p.id].output_ids.tolist())
        middle = text[len(text) // 3 : len(text) // 3 + 3]
        prompts.append(PromptRequest(p.id, p.prompt_ids, p.max_new_tokens, stop=(middle,) if middle else ()))
    seen = run(config(**options), prompts)
    assert any(ended.finish_reason == "stop" for ended in seen.values())
    for prompt in prompts:
        ended, want = seen[prompt.id], baseline()[prompt.id]
        kept = len(ended.output_ids)
        assert ended.output_ids.tolist() == want.output_ids[:kept].tolist()
        if prompt.stop and ended.finish_reason == "stop":
            assert prompt.stop[0] in decode(ended.output_ids.tolist())
            assert prompt.stop[0] not in decode(ended.output_ids[:-1].tolist())
        assert len(ended.expert_ids) == len(prompt.prompt_ids) + kept - 1


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    "options", [{"overlap": False}, {}, {"draft": DRAFT}, {"disagg": True, "draft": DRAFT}], ids=str
)
@pytest.mark.parametrize("after", [0, 1, 4])
def test_an_aborted_request_keeps_what_it_had_and_disturbs_no_other(after, options):
    prompts = [
        PromptRequest(p.id, p.prompt_ids, p.max_new_tokens, abort_after=after if i % 3 == 0 else None)
        for i, p in enumerate(PROMPTS)
    ]
    seen = run(config(prefix_cache=True, max_running_requests=4, **options), prompts)
    assert seen.keys() == baseline().keys()
    for prompt in prompts:
        ended, want = seen[prompt.id], baseline()[prompt.id]
        n, kept = len(ended.expert_ids), len(ended.output_ids)
        assert ended.output_ids.tolist() == want.output_ids[:kept].tolist()
        assert ended.expert_ids.tobytes() == want.expert_ids[:n].tobytes()
        if prompt.abort_after is None:
            assert kept == len(want.output_ids)
        elif ended.finish_reason == "abort":
            assert kept >= after and n <= len(prompt.prompt_ids) + max(0, kept - 1)
    assert any(ended.finish_reason == "abort" for ended in seen.values())


# New weights


def test_rows_from_before_a_weight_update_are_those_of_the_old_weights():
    updated = config(max_running_requests=4, weight_updates=((9, UPDATED),), prefix_cache=True)
    seen = run(updated, PROMPTS)
    versions = np.concatenate([ended.weight_version for ended in seen.values()])
    assert 0.1 < versions.mean() < 0.9
    for prompt in PROMPTS:
        ended, old = seen[prompt.id], baseline()[prompt.id]
        before = int((ended.weight_version == 0).sum())
        assert (np.diff(ended.weight_version.astype(int)) >= 0).all()
        assert ended.expert_ids[:before].tobytes() == old.expert_ids[:before].tobytes()
        if before == len(ended.expert_ids):
            continue
        # From there on the new weights see all tokens so far, as if they had always been there.
        fed = (*prompt.prompt_ids, *ended.output_ids.tolist())
        known = max(before, len(prompt.prompt_ids))
        again = PromptRequest(
            prompt.id,
            fed[:known],
            len(fed) - known,
            output_start=known - len(prompt.prompt_ids),
        )
        new = target_only(RunConfig(model=UPDATED), [again])[prompt.id]
        assert new.output_ids.tolist() == list(fed[known:])
        assert ended.expert_ids[before:].tobytes() == new.expert_ids[before:].tobytes()
    assert total(seen, "num_retractions") > 0


@pytest.mark.quick(2)
@pytest.mark.parametrize("options", [{"overlap": False}, {"draft": DRAFT}, {"graph": True}], ids=str)
def test_a_weight_update_works_in_every_loop(options):
    shared = {"max_running_requests": 4, "weight_updates": ((7, UPDATED), (11, "builtin:tiny"))}
    seen = run(config(prefix_cache=True, **shared, **options), PROMPTS)
    for prompt in PROMPTS:
        ended, old = seen[prompt.id], baseline()[prompt.id]
        before = int((ended.weight_version == 0).sum())
        assert ended.expert_ids[:before].tobytes() == old.expert_ids[:before].tobytes()


def test_new_weights_of_another_model_are_refused():
    with pytest.raises(InputError, match="--weight-update builtin:random"):
        run(config(weight_updates=((1, "builtin:random"),)), PROMPTS)
