"""Layers that route by token: healthy whatever else is on, and their fault."""

import functools
from dataclasses import replace

import numpy as np
import pytest
from runtime_harness import RandomDelays, RandomPolicy, assert_identical, requests, run, target_only

from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.engine import LocalRuntime
from moeinspect.runtime.models.builtin import open_builtin
from moeinspect.runtime.models.expected import HASH_TABLE
from moeinspect.runtime.resolve import resolve

MODEL, DRAFT = "builtin:random-hash", "builtin:random-hash-draft"
PROMPTS = tuple(requests(vocab=320))
HASH_COLUMNS, OTHERS = [0, 1], [2, 3, 4]
"""Positions of the hash-routed layers 1 and 2, and of the others, among the MoE layers 1 to 5."""


@functools.cache
def healthy(dtype="float32"):
    return target_only(RunConfig(model=MODEL, dtype=dtype), PROMPTS)


def table_of(model, layer):
    return open_builtin(model)[1].tensor(f"model.layers.{layer}.mlp.{HASH_TABLE}").numpy()


def fed_tokens(ended):
    return np.concatenate([ended.prompt_ids, ended.output_ids[:-1]])


def test_hash_layers_hold_the_experts_of_the_token_and_an_infinite_margin():
    for ended in healthy().values():
        tokens = fed_tokens(ended)
        for column, layer in enumerate((1, 2)):
            assert (ended.expert_ids[:, column] == table_of(MODEL, layer)[tokens]).all()
        assert np.isposinf(ended.margin[:, HASH_COLUMNS]).all()
        assert np.isfinite(ended.margin[:, OTHERS]).all()
        assert np.allclose(ended.weights.sum(-1), 1, atol=1e-6)


@pytest.mark.quick(4)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "options",
    [
        {"graph": True, "draft": DRAFT},
        {"backend": "bypass", "draft": DRAFT, "draft_topk": 2, "graph": True},
        {"disagg": True, "draft": "ngram"},
        {"overlap": False, "chunked_prefill_size": 5, "draft": DRAFT},
        {"num_kv_slots": 96, "host_kv_slots": 64, "max_running_requests": 3, "draft": DRAFT},
        {"redundant_experts": 5, "rebalance_interval": 2, "draft": MODEL, "draft_topk": 3},
    ],
)
def test_bits_are_those_of_target_only(options, dtype):
    assert_identical(run(RunConfig(model=MODEL, dtype=dtype, **options), PROMPTS), healthy(dtype))


def test_random_schedules_and_delays_change_nothing():
    config = RunConfig(model=MODEL, draft=DRAFT, graph=True, num_kv_slots=96)
    seen = run(config, PROMPTS, policy=RandomPolicy(5), jitter=RandomDelays(5))
    assert_identical(seen, healthy())


def test_without_its_opt_out_a_drafts_own_tables_are_captured():
    seen = run(RunConfig(model=MODEL, draft=DRAFT, faults=("draft-capture",)), PROMPTS)
    wrong = []
    for request_id, want in healthy().items():
        have, tokens = seen[request_id], fed_tokens(want)
        assert have.output_ids.tolist() == want.output_ids.tolist()
        assert (have.expert_ids == want.expert_ids)[:, OTHERS].all()
        for column, layer in enumerate((1, 2)):
            rows = (have.expert_ids != want.expert_ids)[:, column].any(-1)
            assert (have.expert_ids[rows, column] == table_of(DRAFT, layer)[tokens[rows]]).all()
            wrong.append(rows)
    assert np.concatenate(wrong).mean() > 0.95


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "options",
    [{}, {"draft": DRAFT, "graph": True}, {"disagg": True}, {"backend": "bypass", "overlap": False}],
)
def test_a_hash_router_that_captures_nothing_leaves_its_layers_zero_and_no_other(options):
    seen = run(RunConfig(model=MODEL, faults=("hash-layer-uncaptured",), **options), PROMPTS)
    for request_id, want in healthy().items():
        have = seen[request_id]
        assert have.output_ids.tolist() == want.output_ids.tolist()
        for name in ("expert_ids", "weights", "margin"):
            rows, right = getattr(have, name), getattr(want, name)
            assert not rows[:, HASH_COLUMNS].any()
            assert rows[:, OTHERS].tobytes() == right[:, OTHERS].tobytes()


def test_the_fault_brings_its_model_and_does_nothing_to_another():
    config, _ = resolve(RunConfig(faults=("hash-layer-uncaptured",)), frozenset())
    assert config.model == MODEL
    asked = RunConfig(model="builtin:random", faults=("hash-layer-uncaptured",))
    config, notes = resolve(asked, frozenset({"model"}))
    assert config.model == "builtin:random"
    assert any("--fault hash-layer-uncaptured does nothing in this run" in note for note in notes)
    prompts = PROMPTS[:2]
    seen = run_as_given(asked, prompts)
    assert_identical(seen, target_only(RunConfig(model="builtin:random"), prompts))


def run_as_given(config, prompts):
    """A run of exactly these options: `resolve` would bring the model that the fault needs."""
    with LocalRuntime(replace(config, weights=True, margins=True)) as runtime:
        return {ended.id: ended for ended in runtime.generate(prompts)}
