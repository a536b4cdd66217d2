"""The commands, at toy size on the CPU: they learn, and the same seed gives the same weights."""

import json

import torch

from training.distill import DRAFT_FILE
from training.distill import main as distil
from training.loop import Schedule, read_facts, read_model
from training.train import TARGET_FILE
from training.train import main as train

torch.set_num_threads(1)


def log(folder, name):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def options(folder, *more):
    return ["--data", str(folder), "--size", "toy", "--device", "cpu", "--compile", "off", *more]


def copy(data, folder):
    for path in [*data.glob("*.npy"), data / "tokenizer.json"]:
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def test_the_target_learns_to_predict_held_out_text(data):
    lines = log(data, "target-log.jsonl")
    assert [line["step"] for line in lines] == [20, 40, 60]
    assert lines[-1]["heldout_library"] < lines[0]["heldout_library"] - 0.2


def test_the_draft_learns_to_predict_the_target(data):
    lines = log(data, "draft-log.jsonl")
    assert lines[-1]["divergence"] < lines[0]["divergence"] + lines[0]["greedy"]
    assert lines[-1]["greedy"] < lines[0]["greedy"]


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(data, tmp_path):
    folder = copy(data, tmp_path)
    states = []
    for seed in ("1", "1", "2"):
        train(options(folder, "--steps", "3", "--seed", seed))
        distil(options(folder, "--steps", "3", "--seed", seed))
        states.append(
            [read_model(folder / file, "cpu")[0].state_dict() for file in (TARGET_FILE, DRAFT_FILE)]
        )
    for one, two, other in zip(*states, strict=True):
        assert all(torch.equal(one[name], two[name]) for name in one)
        assert not torch.equal(one["head.weight"], other["head.weight"])


def test_nothing_of_the_draft_is_copied_from_the_target(data):
    target, draft = (read_model(data / file, "cpu")[0] for file in (TARGET_FILE, DRAFT_FILE))
    for name, weight in draft.named_parameters():
        if weight.dim() == 2:
            assert not torch.equal(weight, target.get_parameter(name)), name


def test_what_was_trained_is_noted_beside_the_weights(data):
    facts = read_facts(data / DRAFT_FILE)
    assert facts["steps"] == 60
    assert facts["tokens"] == 60 * 8 * 48
    assert facts["written_tokens"] == 8 * 48


def test_the_rate_rises_then_falls_to_its_floor():
    schedule = Schedule(steps=100, peak=1.0, warmup=10, floor=0.1)
    rates = [schedule.rate(step) for step in range(100)]
    assert rates[:10] == [(i + 1) / 10 for i in range(10)]
    assert rates[10] == 1.0
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert 0.1 < rates[-1] < 0.11
