"""Faults on a request's way: with their triggers they show their symptom, without them nothing."""

import functools

import numpy as np
import pytest
from life_harness import PROMPTS, TIGHT, UPDATED, stopped_at
from runtime_harness import DRAFT, assert_identical, run, target_only

from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.engine import LocalRuntime
from moeinspect.runtime.records import ROW_ORIGINS, PromptRequest

PREFIX_CACHE = ROW_ORIGINS.index("prefix-cache")


@functools.cache
def healthy():
    return target_only(RunConfig(), PROMPTS)


def with_fault(fault, prompts=PROMPTS, **options):
    """The run as configured, without what `resolve` would turn on for the fault."""
    config = RunConfig(faults=(fault,), weights=True, margins=True, **options)
    with LocalRuntime(config) as runtime:
        return {ended.id: ended for ended in runtime.generate(prompts)}


def wrong_rows(seen, expected):
    """Which rows of each request differ; tokens never do."""
    wrong = {}
    for request_id, ended in seen.items():
        want = expected[request_id]
        assert ended.output_ids.tolist() == want.output_ids.tolist()
        assert ended.expert_ids.shape == want.expert_ids.shape
        wrong[request_id] = (ended.expert_ids != want.expert_ids).any((1, 2))
    return wrong


def rows_of_file(seen):
    return {row.tobytes() for ended in seen.values() for row in ended.expert_ids}


@pytest.mark.quick(2)
@pytest.mark.parametrize("options", [{}, {"draft": DRAFT}, {"disagg": True}], ids=str)
def test_read_early_loses_the_rows_of_the_last_step_and_no_other(options):
    seen = with_fault("read-early", **options)
    for request_id, wrong in wrong_rows(seen, healthy()).items():
        ended = seen[request_id]
        last_step = ended.step == ended.step[-1]
        last_step[: len(ended.prompt_ids)] &= len(ended.output_ids) == 1
        assert wrong[last_step].all() and not wrong[~last_step].any()
        if "draft" not in options:  # else rejected drafts have been there before
            assert not ended.expert_ids[last_step].any()


def test_read_early_on_used_slots_shows_a_former_owners_rows():
    seen = with_fault("read-early", max_running_requests=1, num_kv_slots=TIGHT)
    last = [ended.expert_ids[-1] for ended in seen.values()]
    stale = [row for row in last if row.any()]
    assert stale and all(row.tobytes() in rows_of_file(healthy()) for row in stale)


HOST = {"prefix_cache": True, "host_kv_slots": 4096, "max_running_requests": 1, "num_kv_slots": TIGHT}


def test_stale_slot_leaves_restored_prefixes_with_rows_of_the_slots_former_owner():
    seen = with_fault("stale-slot", **HOST)
    wrong = wrong_rows(seen, healthy())
    cached = {request_id: ended.origin == PREFIX_CACHE for request_id, ended in seen.items()}
    assert sum(rows.sum() for rows in wrong.values()) >= 16
    for request_id, rows in wrong.items():
        assert not rows[~cached[request_id]].any()
        for row in np.flatnonzero(rows):
            assert seen[request_id].expert_ids[row].tobytes() in rows_of_file(healthy())


def test_stale_slot_in_a_decode_worker_that_restores_preempted_requests():
    seen = with_fault("stale-slot", disagg=True, max_running_requests=4, num_kv_slots=TIGHT)
    wrong = wrong_rows(seen, healthy())
    assert any(rows.any() for rows in wrong.values())
    for request_id, rows in wrong.items():
        ended = seen[request_id]
        assert not rows.any() or ended.num_retractions > 0
        assert not rows[: len(ended.prompt_ids)].any()


@pytest.mark.quick(2)
@pytest.mark.parametrize("without", [{"host_kv_slots": 0}, {"prefix_cache": False}, {"num_kv_slots": 2000}])
def test_stale_slot_needs_kv_that_was_moved(without):
    assert_identical(with_fault("stale-slot", **HOST | without), healthy())


def test_surplus_after_stop_returns_rows_of_tokens_that_were_dropped():
    prompts = stopped_at(PROMPTS, 2)
    expected = run(RunConfig(), prompts)
    longer = [PromptRequest(p.id, p.prompt_ids, p.max_new_tokens + 8, ignore_eos=True) for p in PROMPTS]
    unstopped = target_only(RunConfig(), longer)
    seen = with_fault("surplus-after-stop", prompts, draft="builtin:tiny", num_draft_tokens=4)
    surplus = {}
    for prompt in prompts:
        ended, want = seen[prompt.id], expected[prompt.id]
        assert ended.output_ids.tolist() == want.output_ids.tolist()
        n = len(want.expert_ids)
        assert ended.expert_ids[:n].tobytes() == want.expert_ids.tobytes()
        surplus[prompt.id] = len(ended.expert_ids) - n
        whole = unstopped[prompt.id].expert_ids
        assert ended.expert_ids[n:].tobytes() == whole[n : len(ended.expert_ids)].tobytes()
    assert set(surplus.values()) <= set(range(5)) and max(surplus.values()) > 0


@pytest.mark.quick(1)
@pytest.mark.parametrize("options", [{}, {"disagg": True}], ids=str)
def test_surplus_after_stop_needs_a_draft(options):
    prompts = stopped_at(PROMPTS, 2)
    assert_identical(with_fault("surplus-after-stop", prompts, **options), run(RunConfig(), prompts))


def test_surplus_after_stop_needs_a_stop():
    assert_identical(with_fault("surplus-after-stop", draft=DRAFT, ignore_eos=True), healthy())


@pytest.mark.quick(2)
@pytest.mark.parametrize("options", [{}, {"draft": DRAFT}, {"disagg": True}], ids=str)
def test_prefill_only_short_cuts_the_last_prompt_row_where_nothing_was_sampled(options):
    prompts = [PromptRequest(p.id, p.prompt_ids, 3 * (i % 2)) for i, p in enumerate(PROMPTS)]
    expected = run(RunConfig(), prompts)
    seen = with_fault("prefill-only-short", prompts, **options)
    for prompt in prompts:
        ended, want = seen[prompt.id], expected[prompt.id]
        missing = 0 if prompt.max_new_tokens else 1
        assert len(ended.expert_ids) == len(want.expert_ids) - missing
        assert ended.expert_ids.tobytes() == want.expert_ids[: len(ended.expert_ids)].tobytes()


def test_prefill_only_short_needs_a_request_without_new_tokens():
    assert_identical(with_fault("prefill-only-short"), healthy())


UPDATE = {"max_running_requests": 4, "weight_updates": ((9, UPDATED),), "prefix_cache": True}


@pytest.mark.quick(2)
@pytest.mark.parametrize("options", [{}, {"draft": DRAFT}, {"overlap": False}], ids=str)
def test_retract_reroute_gives_rows_of_the_new_weights_to_tokens_of_the_old(options):
    expected = run(RunConfig(**UPDATE, **options), PROMPTS)
    seen = with_fault("retract-reroute", **UPDATE, **options)
    replaced = 0
    for request_id, wrong in wrong_rows(seen, expected).items():
        ended = seen[request_id]
        old = ended.weight_version == 0
        assert ended.weight_version.tolist() == expected[request_id].weight_version.tolist()
        assert not wrong[~old].any() and (ended.num_retractions or not wrong.any())
        if ended.num_retractions:
            fed = (*ended.prompt_ids.tolist(), *ended.output_ids.tolist())[: len(old)]
            new = target_only(RunConfig(model=UPDATED), [PromptRequest("x", fed, 0)])["x"]
            assert ended.expert_ids[old].tobytes() == new.expert_ids[old].tobytes()
            replaced += int(wrong.sum())
    assert replaced > 10


def test_retract_reroute_needs_a_weight_update():
    options = {"prefix_cache": True, "max_running_requests": 4, "num_kv_slots": TIGHT}
    seen = with_fault("retract-reroute", **options)
    assert_identical(seen, healthy())
    assert sum(ended.num_retractions for ended in seen.values()) > 0
