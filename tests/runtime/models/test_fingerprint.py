"""The fingerprint tells models apart, and nothing but models."""

from dataclasses import replace

import pytest
import torch

from moeinspect.runtime.models import fingerprint as module
from moeinspect.runtime.models.builtin import open_builtin
from moeinspect.runtime.models.fingerprint import fingerprint
from moeinspect.runtime.models.weights import MemoryWeights

NAMES = ("model.norm.weight", "lm_head.weight")


def of(config, tensors):
    return fingerprint(config, MemoryWeights("memory", tensors), tensors)


@pytest.fixture
def model():
    config, weights = open_builtin("builtin:random")
    return config, {name: weights.tensor(name).clone() for name in NAMES}


def test_one_changed_weight_changes_it(model):
    config, tensors = model
    before = of(config, tensors)
    tensors["lm_head.weight"][17, 3] += 1
    assert of(config, tensors) != before


@pytest.mark.parametrize("change", [{"top_k": 5}, {"rope_theta": 1e6}, {"norm_topk_prob": False}])
def test_a_changed_computation_changes_it(model, change):
    config, tensors = model
    assert of(replace(config, **change), tensors) != of(config, tensors)


def test_names_paths_and_end_of_text_do_not_change_it(model):
    config, tensors = model
    assert of(replace(config, name="other", eos_token_ids=(1,)), tensors) == of(config, tensors)


def test_dtype_and_shape_count_even_where_the_bytes_are_equal(model):
    config, tensors = model
    as_half = {name: tensor.view(torch.float16) for name, tensor in tensors.items()}
    flat = {name: tensor.reshape(-1) for name, tensor in tensors.items()}
    assert len({of(config, tensors), of(config, as_half), of(config, flat)}) == 3


def test_large_models_are_sampled_over_the_whole_tensor(model, monkeypatch):
    config, _ = model
    monkeypatch.setattr(module, "FULL_HASH_LIMIT", 1000)
    tensors = {"big": torch.zeros(1_000_000)}
    before = of(config, tensors)
    for index in (0, 999_999):
        tensors["big"][index] = 1
        assert of(config, tensors) != before
        tensors["big"][index] = 0
    tensors["big"] += 1e-3  # what a training step does: it touches everything
    assert of(config, tensors) != before
