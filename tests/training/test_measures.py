"""The measurements, each on a case whose answer is known."""

import itertools
import json
import math

import numpy as np
import pytest
import torch

from training.card import main as write_cards
from training.evaluate import main as evaluate
from training.imported import import_model
from training.measure.layers import layer_costs
from training.measure.loads import expert_loads, specialists, token_kinds
from training.measure.observe import Observation, joined, observe
from training.measure.overlap import best_assignment, overlaps
from training.measure.text import text_figures, unigram_losses
from training.prompts import choose_prompts, repeated_share
from training.streams import heldout_windows
from training.tokenizer import read_tokenizer

torch.set_num_threads(1)


@pytest.mark.parametrize("seed", range(20))
def test_the_best_assignment_is_that_of_trying_all(seed):
    n = 1 + seed % 6
    gain = np.random.default_rng(seed).integers(0, 9, (n, n)).astype(float)
    picked = best_assignment(gain)
    assert sorted(picked) == list(range(n))
    best = max(sum(gain[i, j] for i, j in enumerate(p)) for p in itertools.permutations(range(n)))
    assert sum(gain[i, j] for i, j in enumerate(picked)) == best


def choices(seed):
    """Random fours of sixteen experts for 400 tokens."""
    scores = torch.rand(400, 16, generator=torch.Generator().manual_seed(seed))
    return torch.zeros(400, 16, dtype=torch.bool).scatter(1, scores.topk(4).indices, True)


def test_renamed_experts_are_found_and_independent_ones_are_not():
    a = choices(0)
    renamed = a[:, torch.randperm(16, generator=torch.Generator().manual_seed(1))]
    (same,) = overlaps(a[None], renamed[None], [1], 4)
    (other,) = overlaps(a[None], choices(9)[None], [1], 4)
    assert same["renamed"] == 4.0
    assert same["overlap"] < 2
    assert other["chance"] == 1.0 == pytest.approx(other["overlap"], abs=0.15)
    assert other["renamed"] < 1.3


def seen(tokens, chosen, losses=None):
    tokens = torch.as_tensor(tokens)
    losses = torch.zeros(len(tokens)) if losses is None else torch.as_tensor(losses)
    return Observation(tokens, losses, tokens, torch.as_tensor(chosen, dtype=torch.bool))


def test_loads_are_shares_of_the_even_share():
    (figures,) = expert_loads(seen([0] * 4, [[[1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 0], [1, 0, 1, 0]]]), [7])
    assert figures == {"layer": 7, "least": 0.0, "most": 2.0, "entropy": 0.75, "unused": 1}


def test_the_specialist_of_a_kind_is_the_expert_chosen_there_above_all():
    code = seen([1, 2], [[[1, 0], [1, 0]]])
    prose = seen([3, 3], [[[0, 1], [1, 0]]])
    figures = specialists({"library": code, "prose": prose}, np.array([3, 1, 1, 0]), [4])
    assert figures["code"] == [{"layer": 4, "expert": 0, "lift": 1.33, "share": 1.0}]
    assert figures["prose"] == [{"layer": 4, "expert": 1, "lift": 2.0, "share": 0.5}]
    assert figures["white space"] == figures["prose"]


def test_tokens_are_told_apart_by_what_they_begin_with(data):
    backend = read_tokenizer(data)
    kinds = token_kinds(backend)
    for text, kind in (("\n", 0), (" ", 0), ("a", 1), ("7", 2), ("(", 3), ("<|endoftext|>", 3)):
        assert kinds[backend.encode(text).ids[0]] == kind


def test_losses_are_given_by_token_and_by_byte():
    unigram = unigram_losses(torch.tensor([0, 0, 0, 1, 1]), 4)
    assert unigram.exp().tolist() == pytest.approx([9 / 4, 9 / 3, 9, 9])
    observed = seen([0, 1, 2], [[[1], [1], [1]]], [math.nan, 1.0, 3.0])
    figures = text_figures(observed, unigram, np.array([1, 3, 5, 1]))
    assert figures["tokens"] == 2
    assert figures["loss"] == 2.0
    assert figures["bits_per_byte"] == pytest.approx(4 / math.log(2) / 8, abs=1e-4)
    assert figures["unigram_loss"] == pytest.approx((math.log(3) + math.log(9)) / 2, abs=1e-4)


def test_an_observation_gives_the_losses_of_the_model(data):
    model = import_model(data / "pair" / "target")
    windows = heldout_windows(data, "prose", 24, 10, "cpu")
    observed = observe(model, windows)
    logits = model(windows)[0].detach()[:, :-1].log_softmax(-1)
    expected = -logits.gather(-1, windows[:, 1:, None]).mean()
    assert observed.loss == pytest.approx(float(expected), rel=1e-5)
    assert observed.losses.view(10, 24)[:, 0].isnan().all()
    assert observed.chosen.shape == (2, 240, 8)
    assert joined([observed, observed]).loss == pytest.approx(observed.loss)


def test_layers_cost_what_the_loss_rises_by(data):
    model = import_model(data / "pair" / "target")
    windows = heldout_windows(data, "prose", 24, 4, "cpu")
    costs = layer_costs(model, windows)
    without = observe(model, windows, skip=1).loss - observe(model, windows).loss
    assert costs[1] == pytest.approx(without, abs=1e-3)
    assert len(costs) == 3


def test_repetition_is_the_share_of_n_grams_seen_before():
    assert repeated_share([1, 2, 3, 4], 2) == 0
    assert repeated_share([1, 2, 1, 2, 1], 2) == 0.5
    assert repeated_share([1], 8) == 0


def test_prompts_come_from_held_out_text_and_skip_what_repeats(data, corpus):
    backend = read_tokenizer(data)
    asked = []

    def continued(ids):
        asked.append(ids)
        return [5] * 32 if len(asked) == 1 else list(range(1, 33))

    prompts = choose_prompts(corpus, backend, continued, (6, 12))
    held_out = {d.source: d.text for d in corpus if d.split == "heldout"}
    assert [len(prompt.ids) for prompt in prompts] == [6, 12]
    assert all(prompt.text in held_out[prompt.source] for prompt in prompts)
    assert all(backend.encode(prompt.text).ids == prompt.ids for prompt in prompts)
    assert len(asked) == 3


def test_the_evaluation_measures_an_exported_pair_and_the_cards_tell(data, corpus):
    pair = data / "pair"
    row = heldout_windows(data, "prose", 12, 1, "cpu")[0].tolist()
    prompt = {"id": "p", "text": read_tokenizer(data).decode(row), "ids": row, "source": "string.py"}
    (pair / "prompts.json").write_text(json.dumps([prompt]))
    evaluate(["--data", str(data), "--pair", str(pair), "--windows", "4", "--length", "32"])
    figures = json.loads((pair / "evaluation.json").read_text())
    assert figures["text"]["all"]["target"]["tokens"] == 3 * 4 * 31
    assert figures["text"]["all"]["target"]["loss"] < math.log(1024)
    assert figures["serving"]["runs"]["built-in, greedy"]["rows"] == 12 + 31
    assert figures["codes"]["draft"]["training code"]["other_sets"] == 0
    write_cards(["--data", str(data), "--pair", str(pair)])
    for name in ("target", "draft"):
        card = (pair / name / "README.md").read_text()
        loss = figures["text"]["prose"][name]["loss"]
        assert f"| prose | 124 | {loss:.3f} |" in card
        assert "PSF-2.0" in card
