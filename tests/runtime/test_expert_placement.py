"""Redundant experts never change a result, whatever else is on."""

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


@pytest.mark.quick(5)
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
