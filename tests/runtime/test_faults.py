"""Each fault happens by its real mechanism: with its triggers it shows its symptom, without them nothing."""

import functools

import numpy as np
import pytest
from runtime_harness import DRAFT, assert_identical, requests, run, target_only

from moeinspect.errors import UsageError
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.engine import LocalRuntime

PROMPTS = tuple(requests())
DRAFT_COLUMNS = [0, 1]
"""Positions of the draft's MoE layers 1 and 2 among the target's MoE layers 1 to 5."""


@functools.cache
def healthy():
    return target_only(RunConfig(), PROMPTS)


def wrong_cells(fault, **options):
    """Cells that differ from target-only, by request [n, L]; tokens and weights' shapes never do."""
    seen = run(RunConfig(faults=(fault,), **options), PROMPTS)
    out = {}
    for request_id, want in healthy().items():
        have = seen[request_id]
        assert have.output_ids.tolist() == want.output_ids.tolist()
        out[request_id] = (have.expert_ids != want.expert_ids).any(-1)
    return seen, out


@pytest.mark.quick(2)
@pytest.mark.parametrize("options", [{}, {"draft": DRAFT}, {"chunked_prefill_size": 8}])
def test_skip_finalize_prefill_leaves_exactly_the_prompt_rows_zero(options):
    seen, wrong = wrong_cells("skip-finalize-prefill", **options)
    for prompt in PROMPTS:
        prompt_len = len(prompt.prompt_ids)
        assert not seen[prompt.id].expert_ids[:prompt_len].any()
        assert not wrong[prompt.id][prompt_len:].any()


@pytest.mark.parametrize(
    "fault, options",
    [
        ("skip-finalize-prefill", {"disagg": True, "overlap": False}),
        ("skip-finalize-prefill", {"disagg": False}),
        ("draft-capture", {"draft": None}),
        ("no-merge", {"disagg": False}),
        ("buffer-reuse", {"overlap": False}),
    ],
)
def test_without_its_triggers_a_fault_changes_nothing(fault, options):
    # `resolve` turns on what was not switched off explicitly, so the configuration is built without it.
    config = RunConfig(faults=(fault,), weights=True, margins=True, **options)
    with LocalRuntime(config) as runtime:
        seen = {ended.id: ended for ended in runtime.generate(PROMPTS)}
    assert_identical(seen, healthy())


@pytest.mark.quick(2)
@pytest.mark.parametrize("options", [{}, {"overlap": False}, {"disagg": True}, {"chunked_prefill_size": 8}])
def test_draft_capture_puts_the_drafts_choices_into_its_layers_and_no_other(options):
    seen, wrong = wrong_cells("draft-capture", **options)
    cells = np.concatenate(list(wrong.values()))
    others = np.delete(cells, DRAFT_COLUMNS, axis=1)
    assert not others.any()
    assert cells[:, DRAFT_COLUMNS].mean() > 0.95
    for ended in seen.values():
        ids = np.sort(ended.expert_ids, axis=-1)
        assert (np.diff(ids.astype(int), axis=-1) > 0).all()


def test_draft_capture_needs_a_draft_with_the_targets_top_k(tmp_path):
    from moeinspect.runtime.engine import _check_draft_capture

    with pytest.raises(UsageError, match="top-k"):
        _check_draft_capture(RunConfig(faults=("draft-capture",), draft="x"), 4, 2)


def test_no_merge_returns_zero_prompt_rows_on_fresh_slots():
    seen, wrong = wrong_cells("no-merge")
    for prompt in PROMPTS:
        prompt_len = len(prompt.prompt_ids)
        assert not seen[prompt.id].expert_ids[:prompt_len].any()
        assert not wrong[prompt.id][prompt_len:].any()
        assert (seen[prompt.id].worker == 1).all()


def test_no_merge_returns_a_former_owners_rows_on_slots_that_are_used_again():
    need = max(len(p.prompt_ids) + p.max_new_tokens for p in PROMPTS) + 8
    seen, _ = wrong_cells("no-merge", num_kv_slots=need)
    prompt_rows = [seen[p.id].expert_ids[: len(p.prompt_ids)] for p in PROMPTS]
    stale = [rows.reshape(len(rows), -1).any(-1) for rows in prompt_rows]
    assert np.concatenate(stale).any()
    former = {row.tobytes() for ended in seen.values() for row in ended.expert_ids if row.any()}
    assert all(row.tobytes() in former for rows in prompt_rows for row in rows if row.any())


@pytest.mark.quick(2)
@pytest.mark.parametrize("options", [{}, {"draft": DRAFT}, {"disagg": True}])
def test_buffer_reuse_stores_the_next_steps_rows(options):
    _, wrong = wrong_cells("buffer-reuse", ignore_eos=False, **options)
    assert np.concatenate([cells.any(1) for cells in wrong.values()]).mean() > 0.1


def test_buffer_reuse_in_a_decode_of_one_request_shifts_rows_by_one_step():
    prompt = next(p for p in PROMPTS if p.max_new_tokens > 8)
    seen = run(RunConfig(faults=("buffer-reuse",), ignore_eos=True), [prompt])[prompt.id]
    want = target_only(RunConfig(ignore_eos=True), [prompt])[prompt.id]
    first = len(prompt.prompt_ids)
    assert seen.expert_ids[first:-1].tolist() == want.expert_ids[first + 1 :].tolist()
    assert seen.expert_ids[-1].tolist() == want.expert_ids[-1].tolist()
