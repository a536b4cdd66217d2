"""Faults of disaggregated runs and of answers in batches: symptom with their triggers, nothing without."""

import functools
from dataclasses import replace

import numpy as np
import pytest
from runtime_harness import DRAFT, assert_identical, requests, run, target_only

from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.engine import LocalRuntime
from moeinspect.runtime.memory.page_allocator import PAGE_SIZE
from moeinspect.runtime.records import PromptRequest

PROMPTS = tuple(requests(6, seed=2, max_new=20))
SEVERAL = {"prefill_workers": 2, "decode_workers": 2}

ASKED = (False, True, True, False, True)
MIXED = tuple(
    PromptRequest(f"m{i}", tuple(range(7 * i, 7 * i + 9)), 6, ignore_eos=True, return_routed_experts=asked)
    for i, asked in enumerate(ASKED)
)


@functools.cache
def healthy(prompts=PROMPTS):
    return target_only(RunConfig(), [replace(prompt, return_routed_experts=True) for prompt in prompts])


def as_configured(config, prompts):
    """Runs exactly this configuration: `resolve` turns on what a fault needs."""
    with LocalRuntime(replace(config, weights=True, margins=True)) as runtime:
        return {ended.id: ended for ended in runtime.generate(prompts)}


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "options",
    [{}, {"overlap": False}, {"draft": DRAFT}, SEVERAL, {"transfer": "gloo"}, {"stream": True}],
    ids=lambda options: ",".join(f"{k}={v}" for k, v in options.items()),
)
def test_merge_misaligned_shifts_the_output_rows_to_the_start_of_the_page(options):
    seen = run(RunConfig(faults=("merge-misaligned",), **options), PROMPTS)
    for name, want in healthy().items():
        have, prompt_len = seen[name], len(want.prompt_ids)
        lag = prompt_len % PAGE_SIZE
        assert have.output_ids.tolist() == want.output_ids.tolist()
        assert have.expert_ids.shape == want.expert_ids.shape
        assert (have.expert_ids[:prompt_len] == want.expert_ids[:prompt_len]).all()
        outputs, true = have.expert_ids[prompt_len:], want.expert_ids[prompt_len:]
        assert not outputs[:lag].any() and (have.step[prompt_len : prompt_len + lag] == -1).all()
        assert (outputs[lag:] == true[: max(0, len(true) - lag)]).all()


def test_merge_misaligned_without_disaggregation_changes_nothing():
    assert_identical(as_configured(RunConfig(faults=("merge-misaligned",)), PROMPTS), healthy())


def test_merge_misaligned_changes_nothing_where_prompts_fill_their_pages():
    prompts = [
        replace(prompt, prompt_ids=prompt.prompt_ids[: len(prompt.prompt_ids) // PAGE_SIZE * PAGE_SIZE])
        for prompt in PROMPTS
        if len(prompt.prompt_ids) >= PAGE_SIZE
    ]
    assert len(prompts) > 2
    assert_identical(run(RunConfig(faults=("merge-misaligned",)), prompts), target_only(RunConfig(), prompts))


@pytest.mark.quick(2)
@pytest.mark.parametrize("fault", ["no-merge", "skip-finalize-prefill"])
@pytest.mark.parametrize("transfer", ["shm", "gloo"])
def test_prompt_rows_are_zero_with_several_workers_too(fault, transfer):
    seen = run(RunConfig(faults=(fault,), transfer=transfer, **SEVERAL), PROMPTS)
    for name, want in healthy().items():
        prompt_len = len(want.prompt_ids)
        assert not seen[name].expert_ids[:prompt_len].any()
        assert (seen[name].expert_ids[prompt_len:] == want.expert_ids[prompt_len:]).all()


@pytest.mark.quick(2)
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_batch_index_swap_hands_each_request_the_rows_of_the_next_that_asked(overlap, stream):
    seen = run(RunConfig(faults=("batch-index-swap",), overlap=overlap, stream=stream), MIXED)
    # The list holds the rows of 1, 2 and 4; positions 0 to 4 read it.
    for position, rows_of in enumerate([1, 2, 4, None, None]):
        have, own = seen[f"m{position}"], healthy(MIXED)[f"m{position}"]
        assert have.output_ids.tolist() == own.output_ids.tolist()
        assert have.has_routed_experts == (rows_of is not None)
        if rows_of is not None:
            want = healthy(MIXED)[f"m{rows_of}"]
            assert (have.expert_ids == want.expert_ids).all()
            assert (have.expert_ids != own.expert_ids).any()


@pytest.mark.quick(1)
@pytest.mark.parametrize("options", [{}, {"transfer": "gloo"}, {"overlap": False}])
def test_batch_index_swap_between_decode_workers_and_balancer_swaps_output_rows(options):
    seen = run(RunConfig(faults=("batch-index-swap",), disagg=True, **options), MIXED)
    prompt_len = len(MIXED[0].prompt_ids)
    for position, rows_of in enumerate([1, 2, 4, None, None]):
        have, own = seen[f"m{position}"], healthy(MIXED)[f"m{position}"]
        assert have.output_ids.tolist() == own.output_ids.tolist()
        assert have.has_routed_experts == (rows_of is not None)
        if rows_of is not None:
            others = healthy(MIXED)[f"m{rows_of}"].expert_ids[prompt_len:]
            # Nothing came from the prefill worker for a request that did not ask.
            mine = own.expert_ids[:prompt_len] if ASKED[position] else own.expert_ids[:0]
            assert (have.expert_ids == np.concatenate([mine, others])).all()


@pytest.mark.parametrize(
    "prompts, options",
    [
        ([replace(prompt, return_routed_experts=True) for prompt in MIXED], {}),
        ([replace(prompt, return_routed_experts=True) for prompt in MIXED], {"disagg": True}),
        (MIXED, {"max_running_requests": 1}),
        ([replace(prompt, max_new_tokens=2 + i) for i, prompt in enumerate(MIXED)], {}),
    ],
    ids=["all-asked", "all-asked-disagg", "one-at-a-time", "no-two-end-in-one-step"],
)
def test_batch_index_swap_without_its_triggers_changes_nothing(prompts, options):
    seen = run(RunConfig(faults=("batch-index-swap",), **options), prompts)
    want = run(RunConfig(**options), prompts)
    assert_identical(seen, want)
    for prompt in prompts:
        assert seen[prompt.id].has_routed_experts == prompt.return_routed_experts
    if all(prompt.return_routed_experts for prompt in prompts):
        assert_identical(seen, target_only(RunConfig(), prompts))
