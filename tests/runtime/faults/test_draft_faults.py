"""Faults of drafts: with their triggers they show their symptom, without each of them nothing."""

import functools

import numpy as np
import pytest
from runtime_harness import DRAFT, assert_identical, requests, run, target_only

from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.engine import LocalRuntime

PROMPTS = tuple(requests())
DRAFT_COLUMNS = [0, 1]
"""Positions of the draft's MoE layers 1 and 2 among the target's MoE layers 1 to 5."""
TREE = {"draft": DRAFT, "draft_topk": 3, "num_draft_tokens": 6}


@functools.cache
def healthy():
    return target_only(RunConfig(), PROMPTS)


def wrong_cells(fault, prompts=PROMPTS, **options):
    """The ended requests, and their cells [n, L] that differ from target-only; tokens never differ."""
    seen = run(RunConfig(faults=(fault,), **options), prompts)
    wrong = {}
    for request_id, have in seen.items():
        want = healthy()[request_id]
        assert have.output_ids.tolist() == want.output_ids.tolist()
        wrong[request_id] = (have.expert_ids != want.expert_ids).any(-1)
    return seen, wrong


def first_rows_of_steps(ended):
    """The row of each verify step that fed the token sampled last: the root of its tree."""
    first = len(ended.prompt_ids)
    steps = ended.step[first:]
    return first + np.flatnonzero(np.diff(steps, prepend=-1))


@pytest.mark.quick(5)
@pytest.mark.parametrize(
    "fault, options",
    [
        ("tree-rows", {"draft": DRAFT, "draft_topk": 1}),
        ("tree-rows", {"draft": "ngram", "draft_topk": 1}),
        ("tree-rows", {"draft": None, "draft_topk": 2}),
        ("verify-dropped", {"draft": DRAFT, "overlap": False}),
        ("verify-dropped", {"draft": "ngram", "overlap": False}),
        ("verify-dropped", {"draft": None}),
        ("draft-forward-end", {**TREE, "overlap": False}),
        ("draft-forward-end", {"draft": DRAFT, "draft_topk": 1}),
        ("draft-forward-end", {"draft": "ngram", "draft_topk": 2}),
        ("draft-recreates-capturer", {"draft": "ngram"}),
        ("draft-recreates-capturer", {"draft": None}),
        ("draft-capture", {"draft": "ngram"}),
    ],
)
def test_without_its_triggers_a_fault_changes_nothing(fault, options):
    # `resolve` turns on what was not switched off explicitly, so the configuration is built without it.
    config = RunConfig(faults=(fault,), weights=True, margins=True, **options)
    with LocalRuntime(config) as runtime:
        assert_identical({ended.id: ended for ended in runtime.generate(PROMPTS)}, healthy())


@pytest.mark.quick(2)
@pytest.mark.parametrize("options", [{}, {"overlap": False}, {"disagg": True}], ids=str)
def test_tree_rows_leaves_accepted_nodes_rows_behind(options):
    seen, wrong = wrong_cells("tree-rows", **TREE, **options)
    for request_id, cells in wrong.items():
        assert not cells[: len(seen[request_id].prompt_ids)].any()
        assert not cells[first_rows_of_steps(seen[request_id])].any()

    assert sum(cells.any(1).sum() for cells in wrong.values()) >= 5


@pytest.mark.quick(2)
@pytest.mark.parametrize("options", [{}, {"disagg": True}, TREE], ids=["chain", "disagg", "tree"])
def test_verify_dropped_leaves_exactly_the_output_rows_zero(options):
    seen, wrong = wrong_cells("verify-dropped", **{"draft": DRAFT, **options})
    for request_id, cells in wrong.items():
        prompt_len = len(seen[request_id].prompt_ids)
        assert not cells[:prompt_len].any()
        assert not seen[request_id].expert_ids[prompt_len:].any()


@pytest.mark.parametrize("disagg", [False, True], ids=["unified", "disagg"])
def test_verify_dropped_loses_the_prompt_rows_of_ngram_runs_as_well(disagg):
    seen, _ = wrong_cells("verify-dropped", draft="ngram", disagg=disagg)
    assert all(not ended.expert_ids.any() for ended in seen.values())


def test_draft_forward_end_stores_other_tokens_rows_under_the_slots_of_the_drafts_extension():
    seen, wrong = wrong_cells("draft-forward-end", **TREE)
    for request_id, cells in wrong.items():
        assert not cells[: len(seen[request_id].prompt_ids)].any()
    rows = {row.tobytes() for ended in healthy().values() for row in ended.expert_ids}
    strangers = [
        row.tobytes() in rows for key, cells in wrong.items() for row in seen[key].expert_ids[cells.any(1)]
    ]
    assert len(strangers) >= 5 and any(strangers)


def test_draft_forward_end_undoes_the_compaction_of_a_request_that_runs_alone():
    for prompt in PROMPTS[:3]:
        undone, _ = wrong_cells("draft-forward-end", [prompt], **TREE)
        never_done, _ = wrong_cells("tree-rows", [prompt], **TREE)
        # The extension's filler row stands where the next step begins, which stores its own row there.
        assert undone[prompt.id].expert_ids.tolist() == never_done[prompt.id].expert_ids.tolist()


@pytest.mark.quick(2)
@pytest.mark.parametrize("options", [{}, {"overlap": False}, {"disagg": True}, TREE], ids=str)
def test_draft_recreates_capturer_loses_the_layers_that_the_draft_lacks(options):
    seen, wrong = wrong_cells("draft-recreates-capturer", **options)
    for request_id, cells in wrong.items():
        assert not cells[:, DRAFT_COLUMNS].any()
        assert (np.delete(seen[request_id].expert_ids, DRAFT_COLUMNS, axis=1) == 255).all()


def test_draft_capture_with_a_tree_is_as_precise_as_with_a_chain_over_prompts_only():
    seen, wrong = wrong_cells("draft-capture", **TREE)
    prompt = np.concatenate([cells[: len(seen[key].prompt_ids)] for key, cells in wrong.items()])
    output = np.concatenate([cells[len(seen[key].prompt_ids) :] for key, cells in wrong.items()])
    assert not np.delete(prompt, DRAFT_COLUMNS, axis=1).any()
    assert prompt[:, DRAFT_COLUMNS].mean() > 0.95 and output[:, DRAFT_COLUMNS].mean() > 0.95
    # The draft extends by paths and not by the target's rows, so its other layers hold strangers' values.
    assert np.delete(output, DRAFT_COLUMNS, axis=1).any()
