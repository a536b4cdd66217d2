"""Faults of placed and shared experts: the precise symptom, and nothing without each of their triggers."""

import functools
from dataclasses import replace

import numpy as np
import pytest
from runtime_harness import DRAFT, assert_identical, requests, run, target_only

from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.engine import LocalRuntime
from moeinspect.runtime.resolve import resolve

PROMPTS = tuple(requests())
E, R = 32, 4


@functools.cache
def healthy():
    return target_only(RunConfig(), PROMPTS)


def captured(**options):
    """Recorded and right ids [n, L, K] of a run with `physical-ids`, of which nothing else is wrong."""
    seen = run(RunConfig(faults=("physical-ids",), **options), PROMPTS)
    for request_id, want in healthy().items():
        have = seen[request_id]
        assert have.output_ids.tolist() == want.output_ids.tolist()
        for name in ("weights", "margin"):
            assert getattr(have, name).tobytes() == getattr(want, name).tobytes()
    return tuple(np.concatenate([of[i].expert_ids for i in healthy()]) for of in (seen, healthy()))


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    "options",
    [{}, {"backend": "bypass"}, {"graph": True, "draft": DRAFT}, {"disagg": True}, {"overlap": False}],
)
def test_slots_stand_where_experts_should_and_some_are_out_of_range(options):
    have, want = captured(**options)
    assert E <= have.max() < E + R
    assert (have != want).mean() > 0.8
    assert 0.03 < (have >= E).mean() < 0.3


def test_while_nothing_is_rebalanced_the_slots_are_a_renaming():
    have, want = captured(rebalance_interval=10_000)
    for layer in range(have.shape[1]):
        once = np.unique(np.stack([want[:, layer].ravel(), have[:, layer].ravel()]), axis=1)
        experts, slots = once
        assert len(set(slots)) == len(slots)  # a slot is of one expert
        copied = [e for e in set(experts) if (experts == e).sum() > 1]
        assert len(copied) <= R
        assert (experts != slots).all()


def test_without_copies_experts_and_slots_are_the_same():
    config = RunConfig(faults=("physical-ids",), weights=True, margins=True)
    with LocalRuntime(config) as runtime:
        assert_identical({ended.id: ended for ended in runtime.generate(PROMPTS)}, healthy())


def test_copies_are_turned_on_unless_they_were_switched_off():
    config, notes = resolve(RunConfig(faults=("physical-ids",)), frozenset())
    assert config.redundant_experts == R
    assert notes == ("--fault physical-ids turned on --redundant-experts 4",)
    config, notes = resolve(RunConfig(faults=("physical-ids",)), frozenset({"redundant_experts"}))
    assert config.redundant_experts == 0
    assert "does nothing in this run: it needs --redundant-experts 4" in notes[0]


def test_ids_beyond_a_byte_are_kept_as_they_are(tmp_path):
    have, _ = captured(redundant_experts=240)
    assert have.dtype == np.uint16
    assert have.max() > 255


SHARED = "builtin:random-shared"
LEFT_IN = "shared-expert-column"


@functools.cache
def healthy_shared():
    return target_only(RunConfig(model=SHARED), PROMPTS)


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"backend": "bypass", "draft": f"{SHARED}-draft"},
        {"graph": True, "redundant_experts": 3},
        {"disagg": True},
        {"overlap": False, "draft": f"{SHARED}-draft", "draft_topk": 2},
    ],
)
def test_the_column_of_the_shared_expert_stands_behind_what_the_router_chose(options):
    seen = run(RunConfig(faults=(LEFT_IN,), **options), PROMPTS)
    for request_id, want in healthy_shared().items():
        have = seen[request_id]
        assert have.output_ids.tolist() == want.output_ids.tolist()
        assert have.margin.tobytes() == want.margin.tobytes()
        # With copies the shared expert's slot is another one, but the gate is asked before the map.
        for name, column in (("expert_ids", E), ("weights", 1.0)):
            routed, extra = np.split(getattr(have, name), [4], axis=2)
            assert routed.tobytes() == getattr(want, name).tobytes()
            assert extra.shape[2] == 1 and (extra == column).all()


@pytest.mark.parametrize("options", [{"model": SHARED}, {"model": "builtin:tiny"}])
def test_without_fusion_there_is_no_column(options):
    config = RunConfig(faults=(LEFT_IN,), weights=True, margins=True, **options)
    with LocalRuntime(config) as runtime:
        seen = {ended.id: ended for ended in runtime.generate(PROMPTS)}
    assert_identical(seen, healthy_shared() if config.model == SHARED else healthy())


def test_rows_that_nobody_asked_for_are_as_wide_as_the_others():
    prompts = [replace(PROMPTS[0], return_routed_experts=False), PROMPTS[1]]
    seen = run(RunConfig(faults=(LEFT_IN,)), prompts)
    assert {ended.expert_ids.shape[1:] for ended in seen.values()} == {(5, 5)}
