"""Redundant and fused shared experts never change a result, whatever else is on."""

import functools

import pytest
from runtime_harness import DRAFT, RandomDelays, RandomPolicy, assert_identical, requests, run, target_only

from moeinspect.errors import UsageError
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.engine import LocalRuntime

PROMPTS = tuple(requests())


@functools.cache
def healthy(dtype):
    return target_only(RunConfig(dtype=dtype), PROMPTS)


@pytest.mark.quick(3)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "options",
    [
        {"graph": True, "draft": DRAFT},
        {"backend": "bypass", "draft": DRAFT, "draft_topk": 2},
        {"disagg": True},
        {"overlap": False, "redundant_experts": 70},
        {"draft": "builtin:tiny"},
    ],
)
def test_bits_are_those_of_experts_without_copies(options, dtype):
    config = RunConfig(**{"dtype": dtype, "redundant_experts": 5, "rebalance_interval": 3} | options)
    assert_identical(run(config, PROMPTS), healthy(dtype))


def test_random_schedules_and_delays_change_nothing():
    config = RunConfig(redundant_experts=3, rebalance_interval=1, host_kv_slots=48)
    seen = run(config, PROMPTS, policy=RandomPolicy(3), jitter=RandomDelays(3))
    assert_identical(seen, healthy("float32"))


def test_more_copies_than_a_trace_has_ids_for_are_refused():
    with pytest.raises(UsageError, match=r"--redundant-experts 65535: with the .* there would be more"):
        LocalRuntime(RunConfig(redundant_experts=65535))


SHARED = "builtin:random-shared"


@functools.cache
def healthy_shared(dtype):
    return target_only(RunConfig(model=SHARED, dtype=dtype), PROMPTS)


@pytest.mark.quick(3)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "options",
    [
        {"fused_shared_expert": True},
        {"fused_shared_expert": True, "graph": True, "draft": f"{SHARED}-draft", "redundant_experts": 4},
        {"fused_shared_expert": True, "backend": "bypass", "weight_updates": ((1000, f"{SHARED}-updated"),)},
        {"fused_shared_expert": True, "disagg": True},
        {"graph": True, "draft": f"{SHARED}-draft", "draft_topk": 2},
    ],
)
def test_a_shared_expert_has_the_same_bits_fused_and_by_itself(options, dtype):
    assert_identical(run(RunConfig(model=SHARED, dtype=dtype, **options), PROMPTS), healthy_shared(dtype))


def test_only_a_model_with_a_shared_expert_can_fuse_it():
    with pytest.raises(UsageError, match="--fused-shared-expert: builtin:tiny has no shared expert") as error:
        LocalRuntime(RunConfig(fused_shared_expert=True))
    assert "builtin:random-shared" in error.value.hint
    LocalRuntime(RunConfig(model=SHARED, draft="builtin:random-draft", fused_shared_expert=True)).close()
