"""Faults of graphs: with their triggers the precise symptom, without each of them nothing."""

import functools

import numpy as np
import pytest
from runtime_harness import DRAFT, RandomDelays, assert_identical, requests, run, target_only

from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.engine import LocalRuntime
from moeinspect.runtime.records import PromptRequest
from moeinspect.runtime.worker import graph_runner

PROMPTS = tuple(requests())
DRAFT_COLUMNS = [0, 1]
"""Positions of the draft's MoE layers 1 and 2 among the target's MoE layers 1 to 5."""


@functools.cache
def healthy(prompts=PROMPTS, **options):
    return target_only(RunConfig(**options), prompts)


def wrong_cells(fault, prompts=PROMPTS, **options):
    """Cells that differ from target-only, by request [n, L]; tokens never do."""
    seen = run(RunConfig(faults=(fault,), **options), prompts)
    wrong = {}
    for request_id, want in healthy(prompts).items():
        assert seen[request_id].output_ids.tolist() == want.output_ids.tolist()
        wrong[request_id] = (seen[request_id].expert_ids != want.expert_ids).any(-1)
    return seen, wrong


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    ("fault", "options"),
    [
        ("draft-optout-late", {"draft": DRAFT, "graph": False}),
        ("draft-optout-late", {"draft": None, "graph": True}),
        ("draft-optout-late", {"draft": "ngram", "graph": True}),
        ("padded-rows", {"graph": False, "chunked_prefill_size": 8}),
        ("graph-static-rows", {"graph": False}),
        ("graph-static-rows", {"graph": False, "draft": DRAFT}),
    ],
)
def test_without_its_triggers_a_fault_changes_nothing(fault, options):
    # `resolve` turns on what was not switched off explicitly, so the configuration is built without it.
    config = RunConfig(faults=(fault,), weights=True, margins=True, **options)
    with LocalRuntime(config) as runtime:
        seen = {ended.id: ended for ended in runtime.generate(PROMPTS)}
    assert_identical(seen, healthy())


@pytest.mark.quick(2)
@pytest.mark.parametrize("options", [{}, {"overlap": False}, {"disagg": True}, {"backend": "bypass"}])
def test_a_late_opt_out_leaves_the_drafts_choices_in_replayed_steps(options):
    """A draft has no prefill graphs, so prompt rows stay right."""
    _, wrong = wrong_cells("draft-optout-late", **options)
    for prompt in PROMPTS:
        assert not wrong[prompt.id][: len(prompt.prompt_ids)].any()
    cells = np.concatenate([wrong[p.id][len(p.prompt_ids) :] for p in PROMPTS])
    assert not np.delete(cells, DRAFT_COLUMNS, axis=1).any()
    assert cells[:, DRAFT_COLUMNS].mean() > 0.95


def test_a_late_opt_out_holds_where_no_graph_fits(monkeypatch):
    monkeypatch.setattr(graph_runner, "MAX_DECODE_ROWS", 1)
    _, wrong = wrong_cells("draft-optout-late", overlap=False)
    assert not np.concatenate(list(wrong.values())).any()


@pytest.mark.quick(2)
@pytest.mark.parametrize("options", [{}, {"overlap": False}, {"disagg": True}, {"draft": DRAFT}])
def test_padding_stands_under_the_slots_of_the_chunk_before(options):
    """45 tokens in chunks of 32: the second has 13 rows and replays the graph of 16."""
    ids = tuple((7 * i) % 251 for i in range(45))
    prompts = (PromptRequest("long", ids, 5),)
    seen, wrong = wrong_cells("padded-rows", prompts, chunked_prefill_size=32, **options)
    assert np.flatnonzero(wrong["long"].any(1)).tolist() == [13, 14, 15]
    rows = seen["long"].expert_ids[13:16]
    assert (rows == rows[0]).all()
    assert (np.diff(np.sort(rows, axis=-1).astype(int), axis=-1) > 0).all()  # a real-looking row


def test_padding_reaches_up_to_the_end_of_the_chunk_before():
    """A chunk of 33 rows needs the graph of 64: one row repeats up to the boundary."""
    ids = tuple((7 * i) % 251 for i in range(97))
    prompts = (PromptRequest("long", ids, 3),)
    seen, wrong = wrong_cells("padded-rows", prompts, chunked_prefill_size=64)
    assert np.flatnonzero(wrong["long"].any(1)).tolist() == list(range(33, 64))
    rows = seen["long"].expert_ids[33:64]
    assert (rows == rows[0]).all()


def test_chunks_that_fill_their_graphs_have_no_padding():
    prompts = (PromptRequest("long", tuple((7 * i) % 251 for i in range(48)), 5),)
    _, wrong = wrong_cells("padded-rows", prompts, chunked_prefill_size=32)
    assert not wrong["long"].any()


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"overlap": False},
        {"disagg": True},
        {"draft": DRAFT},
        {"draft": DRAFT, "draft_topk": 2},
        {"prefix_cache": True, "chunked_prefill_size": 8},
    ],
)
def test_decode_rows_of_a_request_are_all_the_same(options):
    seen, wrong = wrong_cells("graph-static-rows", **options)
    for prompt in PROMPTS:
        prompt_len = len(prompt.prompt_ids)
        assert not wrong[prompt.id][:prompt_len].any()
        rows = seen[prompt.id].expert_ids[prompt_len:]
        assert (rows == rows[:1]).all()
    assert np.concatenate([wrong[p.id][len(p.prompt_ids) :].any(1) for p in PROMPTS]).mean() > 0.5


def test_the_one_row_that_is_read_is_the_last_steps():
    prompt = next(p for p in PROMPTS if p.max_new_tokens > 8)
    seen = run(RunConfig(faults=("graph-static-rows",), overlap=False, ignore_eos=True), [prompt])
    want = target_only(RunConfig(ignore_eos=True), [prompt])[prompt.id].expert_ids
    rows = seen[prompt.id].expert_ids[len(prompt.prompt_ids) :]
    assert (rows == want[-1]).all()


def test_random_delays_do_not_change_what_static_rows_look_like():
    seen = run(RunConfig(faults=("graph-static-rows",)), PROMPTS, jitter=RandomDelays(3))
    for prompt in PROMPTS:
        rows = seen[prompt.id].expert_ids[len(prompt.prompt_ids) :]
        assert (rows == rows[:1]).all()
