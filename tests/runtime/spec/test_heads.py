"""Draft heads read the target's hidden states, whichever way these reach them."""

import functools

import numpy as np
import pytest
import torch
from model_harness import load, make_batch, make_kv
from runtime_harness import requests, run, target_only

from moeinspect.errors import InputError, UsageError
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.engine import LocalRuntime
from moeinspect.runtime.spec.draft_model import DraftModel

MODEL = "builtin:random"
NEXTN, EAGLE3 = "builtin:random-nextn", "builtin:random-eagle3"
PROMPTS = tuple(requests(6, seed=7, max_new=24))


def accepted(draft, **options):
    seen = run(RunConfig(model=MODEL, draft=draft, ignore_eos=True, **options), PROMPTS)
    return {key: (ended.num_accepted, ended.num_drafted) for key, ended in seen.items()}


@functools.cache
def in_one_go(draft):
    return accepted(draft, overlap=False, chunked_prefill_size=1 << 20, max_running_requests=1)


@pytest.mark.parametrize("draft, least", [(NEXTN, 0.1), (EAGLE3, 0.04)])
def test_heads_often_propose_what_the_target_samples(draft, least):
    kept, sent = np.sum(list(in_one_go(draft).values()), axis=0)
    print(f"{draft}: {kept} of {sent} accepted ({kept / sent:.0%})")
    assert kept / sent > least


@pytest.mark.quick(4)
@pytest.mark.parametrize("draft", [NEXTN, EAGLE3])
@pytest.mark.parametrize(
    "options",
    [{}, {"overlap": False, "chunked_prefill_size": 8}, {"draft_topk": 2}, {"graph": True, "draft_topk": 3}],
    ids=str,
)
def test_a_head_reads_the_targets_hidden_states_of_the_position_before(draft, options, monkeypatch):
    read = {}
    extend = DraftModel.extend

    def spied(self, inputs, captures):
        rows = zip(inputs.positions.tolist(), inputs.input_ids.tolist(), inputs.input_hidden, strict=True)
        read.update({position: (token, hidden) for position, token, hidden in rows})
        extend(self, inputs, captures)

    monkeypatch.setattr(DraftModel, "extend", spied)
    config = RunConfig(model=MODEL, draft=draft, ignore_eos=True, **options)
    for prompt in PROMPTS[2:5]:
        read.clear()
        ended = run(config, [prompt])[prompt.id]
        tokens = [*ended.prompt_ids.tolist(), *ended.output_ids.tolist()][:-1]
        expected = target_hidden(draft, tokens)
        for position, token in enumerate(tokens):
            seen_token, seen = read[position]
            assert seen_token == token
            want = expected[position - 1] if position else torch.zeros_like(expected[0])
            assert torch.equal(seen, want), position


def target_hidden(draft, tokens):
    """The target's hidden states of all positions, computed in one go."""
    model = load(MODEL)
    head = load(draft)
    model.keep_hidden(head.target_layers(model.config.num_hidden_layers))
    return model.run(make_batch([(tokens, 0, list(range(1, 1 + len(tokens))))]), make_kv(model)).hidden


@pytest.mark.parametrize("options", [{}, {"chunked_prefill_size": 8}, {"disagg": True}], ids=str)
def test_a_head_proposes_the_same_in_every_way_to_run(options):
    assert accepted(EAGLE3, **options) == in_one_go(EAGLE3)


def test_a_wrong_hidden_state_is_felt(monkeypatch):
    monkeypatch.setattr(DraftModel, "_last_hidden", lambda self, rows: torch.randn(len(rows), 64))
    felt = accepted(EAGLE3)
    monkeypatch.undo()
    assert felt != in_one_go(EAGLE3)


@pytest.mark.parametrize("draft", [NEXTN, EAGLE3])
def test_draft_capture_with_a_head_aliases_the_one_layer_that_it_shares(draft):
    options = {"model": MODEL, "ignore_eos": True}
    seen = run(RunConfig(draft=draft, faults=("draft-capture",), **options), PROMPTS)
    want = target_only(RunConfig(**options), PROMPTS)
    wrong = np.concatenate([(seen[k].expert_ids != want[k].expert_ids).any(-1) for k in want])
    assert wrong[:, 0].mean() > 0.95 and not wrong[:, 1:].any()
    assert all(seen[k].output_ids.tolist() == want[k].output_ids.tolist() for k in want)


def test_a_head_is_no_target():
    with pytest.raises(InputError, match="is a draft head and cannot run alone; use it with --draft"):
        LocalRuntime(RunConfig(model=NEXTN))


def test_a_head_of_another_target_is_refused():
    with pytest.raises(UsageError, match="--draft builtin:random-nextn"):
        LocalRuntime(RunConfig(model="builtin:tiny", draft=NEXTN))
