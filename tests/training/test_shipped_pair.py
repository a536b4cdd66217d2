"""The pair in the package: what its cards say of it holds."""

import importlib.util
import json
import time
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import moeinspect
from moeinspect.runtime.models.loader import load_model
from moeinspect.runtime.models.tokenizer import load_tokenizer
from training.corpus import split_of
from training.imported import import_model, shape_of
from training.measure.overlap import overlaps
from training.measure.same import differences, runtime_results, training_results, transformers_results
from training.measure.served import serve, served_figures
from training.prompts import Prompt, repeated_share
from training.shapes import DRAFTS, TARGETS

torch.set_num_threads(1)
NAMES = ("target", "draft")
PAIR = Path(moeinspect.__file__).parent / "runtime" / "models" / "pair"


@cache
def prompts():
    return [Prompt(**entry) for entry in json.loads((PAIR / "prompts.json").read_text())]


@cache
def served(temperature=0.0):
    return serve(PAIR, prompts(), 32, temperature)


@cache
def chosen(name):
    """What the routers choose over the text that the target writes, as a mask [layers, N, E]."""
    rows = [[*r.prompt_ids.tolist(), *r.output_ids.tolist()] for r in served().requests]
    return torch.cat([mask for _, mask in runtime_results(PAIR / name, rows)], dim=1)


def figures():
    return json.loads((PAIR / "evaluation.json").read_text())


def test_the_pair_stays_small():
    assert sum(path.stat().st_size for path in PAIR.rglob("*") if path.is_file()) <= 12e6


@pytest.mark.parametrize(("name", "shapes"), [("target", TARGETS), ("draft", DRAFTS)])
def test_the_shipped_model_is_that_of_the_recipe(name, shapes):
    config = json.loads((PAIR / name / "config.json").read_text())
    assert config == shapes["full"].hub_config()
    assert shape_of(config).moe_layers == load(name).config.moe_layers


@cache
def load(name):
    return load_model(str(PAIR / name), dtype=torch.float32, deterministic=True)


@pytest.mark.parametrize("name", NAMES)
def test_one_safetensors_file_holds_bfloat16_alone(name):
    assert [path.name for path in (PAIR / name).glob("*.safetensors")] == ["model.safetensors"]
    with safe_open(PAIR / name / "model.safetensors", framework="pt") as file:
        assert {file.get_slice(key).get_dtype() for key in file.keys()} == {"BF16"}  # noqa: SIM118


def test_loading_takes_a_fraction_of_a_second():
    seconds = []
    for _ in range(4):
        start = time.process_time()
        for name in NAMES:
            load_model(str(PAIR / name), dtype=torch.float32, deterministic=True)
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.25  # 0.04 on an idle core


def test_both_models_have_the_same_tokenizer():
    one, other = ((PAIR / name / "tokenizer.json").read_bytes() for name in NAMES)
    assert one == other
    tokenizer = load_tokenizer(str(PAIR / "target"))
    assert tokenizer.encode("<|endoftext|>") == load("target").config.eos_token_ids == (0,)


def test_the_prompts_are_varied_pieces_of_held_out_files():
    tokenizer = load_tokenizer(str(PAIR / "target"))
    lengths = {len(prompt.ids) for prompt in prompts()}
    assert len(lengths) >= 8
    assert min(lengths) <= 10 < 60 <= max(lengths)
    assert sum(len(prompt.ids) + 31 for prompt in prompts()) >= 200
    for prompt in prompts():
        assert list(tokenizer.encode(prompt.text)) == prompt.ids
        source = prompt.source.removesuffix(":docstrings")
        assert split_of(source) == "heldout", source


@pytest.mark.parametrize("name", NAMES)
def test_runtime_and_training_code_choose_the_same_experts(name):
    rows = [prompt.ids for prompt in prompts()]
    seen = differences(runtime_results(PAIR / name, rows), training_results(import_model(PAIR / name), rows))
    assert seen["other_sets"] == 0
    assert seen["largest_logit_difference"] < 2e-4


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
@pytest.mark.parametrize("name", NAMES)
def test_transformers_chooses_the_same_experts(name):
    rows = [prompt.ids for prompt in prompts()]
    seen = differences(runtime_results(PAIR / name, rows), transformers_results(PAIR / name, rows))
    assert seen["cells"] == sum(map(len, rows)) * len(load(name).config.moe_layers)
    assert seen["other_sets"] == 0
    assert seen["largest_logit_difference"] < 2e-4


@pytest.mark.parametrize(("temperature", "least"), [(0.0, 0.45), (1.0, 0.35)])
def test_most_but_not_all_of_four_proposals_are_accepted(temperature, least):
    assert least <= served_figures(served(temperature))["accepted_share"] <= 0.8


def test_greedy_text_does_not_repeat_itself_at_once():
    for request in served().requests:
        assert repeated_share(request.output_ids.tolist()) == 0
        assert len(set(request.output_ids.tolist())) >= 10


def test_the_draft_chooses_experts_of_its_own():
    target, draft = chosen("target")[:2], chosen("draft")
    for entry in overlaps(target, draft, (1, 2), 4):
        assert entry["overlap"] <= 2 * entry["chance"]
        assert entry["renamed"] < 1.5


def test_every_expert_of_the_target_is_chosen_and_some_far_more_than_others():
    shares = chosen("target").float().mean(dim=1)
    assert (shares > 0).sum(dim=1).min() >= 30
    assert float((shares.max(dim=1).values / shares.mean(dim=1)).max()) > 1.5


def test_the_evaluation_meets_what_the_pair_was_made_for():
    seen = figures()
    everything = seen["text"]["all"]
    assert everything["target"]["loss"] < 0.4 * everything["target"]["unigram_loss"]
    assert everything["agreement"] >= 0.72
    assert min(seen["routing"]["target"]["layer_costs"]) > 0.02
    assert all(entry["unused"] == 0 for entry in seen["routing"]["target"]["loads"])


def test_the_evaluation_is_of_these_weights():
    run = figures()["serving"]["runs"]["built-in, greedy"]
    seen = served_figures(served())
    assert seen["requests"] == run["requests"]
    # Another CPU rounds otherwise, and a token that two others nearly tie with may turn a continuation.
    assert abs(seen["rows"] - run["rows"]) <= 0.1 * run["rows"]
    assert abs(seen["accepted_share"] - run["accepted_share"]) <= 0.1


@pytest.mark.parametrize("name", NAMES)
def test_the_card_holds_the_figures_of_the_evaluation(name):
    card = (PAIR / name / "README.md").read_text()
    text = figures()["text"]["all"][name]
    assert f"| {text['loss']:.3f} | {text['unigram_loss']:.3f} |" in card
