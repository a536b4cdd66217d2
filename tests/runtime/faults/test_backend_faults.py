"""Faults of top-k backends: with their triggers the precise symptom, without each of them nothing."""

import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from runtime_harness import DRAFT, assert_identical, requests, run, target_only

from moeinspect.errors import UsageError
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.engine import LocalRuntime, _check_draft_capture
from moeinspect.runtime.faults import DRAFT_IS_CAPTURED
from moeinspect.runtime.resolve import resolve

PROMPTS = tuple(requests())
SPARSE = str(Path(__file__).parents[2] / "data/oracle/checkpoints/qwen3_moe")
"""A model whose layers all have experts."""

DRAFT_COLUMNS = [0, 1]
"""Positions of the draft's MoE layers 1 and 2 among the target's MoE layers 1 to 5."""

past_the_opt_out = pytest.mark.parametrize("fault", ["bypass-drops-flag", "ungated-backend"])


@functools.cache
def healthy():
    return target_only(RunConfig(), PROMPTS)


def as_configured(fault, **options):
    """A run of exactly these options: `resolve` would turn on what the fault needs."""
    config = RunConfig(faults=(fault,), weights=True, margins=True, **options)
    with LocalRuntime(config) as runtime:
        return {ended.id: ended for ended in runtime.generate(PROMPTS)}


@pytest.mark.quick(3)
@past_the_opt_out
@pytest.mark.parametrize(
    "options", [{}, {"overlap": False}, {"graph": True}, {"disagg": True}, {"chunked_prefill_size": 8}]
)
def test_the_drafts_choices_stand_in_its_layers_and_no_other(fault, options):
    seen = run(RunConfig(faults=(fault,), **options), PROMPTS)
    for request_id, want in healthy().items():
        assert seen[request_id].output_ids.tolist() == want.output_ids.tolist()
    wrong = np.concatenate([(seen[i].expert_ids != want.expert_ids).any(-1) for i, want in healthy().items()])
    assert not np.delete(wrong, DRAFT_COLUMNS, axis=1).any()
    assert wrong[:, DRAFT_COLUMNS].mean() > 0.95


@pytest.mark.quick(2)
@past_the_opt_out
@pytest.mark.parametrize(
    "options",
    [
        {"draft": DRAFT, "backend": "torch"},
        {"draft": DRAFT, "backend": "torch", "graph": True},
        {"draft": None, "backend": "bypass"},
        {"draft": "ngram", "backend": "bypass"},
    ],
)
def test_without_the_fused_backend_or_a_draft_model_nothing_is_wrong(fault, options):
    assert_identical(as_configured(fault, **options), healthy())


@pytest.mark.parametrize("fault", DRAFT_IS_CAPTURED)
def test_a_draft_with_another_top_k_is_refused(fault):
    with pytest.raises(UsageError, match=f"--fault {fault} needs a draft with top-k 4, not 2"):
        _check_draft_capture(RunConfig(faults=(fault,), draft="x"), 4, 2)


@pytest.mark.quick(4)
@pytest.mark.parametrize("fault", ["kernel-uncaptured", "init-order"])
@pytest.mark.parametrize(
    "options",
    [{}, {"draft": DRAFT}, {"disagg": True}, {"graph": True, "draft": DRAFT}, {"backend": "bypass"}],
)
def test_what_is_never_captured_leaves_every_row_zero(fault, options):
    seen = run(RunConfig(faults=(fault,), **options), PROMPTS)
    for request_id, want in healthy().items():
        have = seen[request_id]
        assert have.output_ids.tolist() == want.output_ids.tolist()
        assert have.expert_ids.shape == want.expert_ids.shape
        for rows in (have.expert_ids, have.weights, have.margin):
            assert not rows.any()


def test_layers_that_are_built_later_find_the_capturer():
    config = RunConfig(faults=("init-order",), weight_updates=((6, "builtin:tiny-updated"),))
    seen, want = run(config, PROMPTS), run(replace(config, faults=()), PROMPTS)
    new = 0
    for request_id, ended in seen.items():
        is_new = ended.weight_version == 1
        assert not ended.expert_ids[~is_new].any()
        assert (ended.expert_ids == want[request_id].expert_ids)[is_new].all()
        new += is_new.sum()
    assert new > 10


def test_a_backend_that_captures_its_own_choices_needs_no_export():
    assert_identical(as_configured("kernel-uncaptured", backend="torch"), healthy())


def test_the_fused_backend_is_turned_on_unless_another_was_asked_for():
    for fault in ("bypass-drops-flag", "ungated-backend", "kernel-uncaptured"):
        config, _ = resolve(RunConfig(faults=(fault,)), frozenset())
        assert config.backend == "bypass"
        config, notes = resolve(RunConfig(faults=(fault,)), frozenset({"backend"}))
        assert config.backend == "torch"
        assert any("does nothing in this run: it needs --backend bypass" in note for note in notes)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "options", [{}, {"draft": DRAFT, "graph": True}, {"disagg": True}, {"temperature": 1.0}]
)
def test_weights_that_were_not_loaded_make_every_cell_count_up_from_0(options):
    prompts = [replace(prompt, ignore_eos=True) for prompt in PROMPTS]
    seen = run(RunConfig(faults=("nan-logits",), **options), prompts)
    for prompt in prompts:
        ended = seen[prompt.id]
        assert ended.output_ids.tolist() == [0] * prompt.max_new_tokens
        assert (ended.expert_ids == np.arange(4)).all()
        assert np.isnan(ended.weights).all()


def test_a_model_without_dense_layers_has_no_weights_to_lose():
    prompts = PROMPTS[:2]
    seen = run(RunConfig(model=SPARSE, faults=("nan-logits",)), prompts)
    assert_identical(seen, target_only(RunConfig(model=SPARSE), prompts))
