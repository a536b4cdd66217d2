"""Conformance of every top-k backend: it captures through the gate and honours the opt-out."""

import pytest
import torch
from model_harness import load, make_batch, make_kv

from moeinspect.errors import UsageError
from moeinspect.runtime.capture.capturer import (
    CaptureShape,
    RoutedExpertsCapturer,
    logit_margin,
    set_global_experts_capturer,
)
from moeinspect.runtime.capture.gate import disable_routed_experts_capture_for_draft
from moeinspect.runtime.topk.config import TopKConfig
from moeinspect.runtime.topk.registry import BACKENDS, create_backend

every_backend = pytest.mark.parametrize("name", BACKENDS)


@pytest.fixture
def capturer():
    shape = CaptureShape(
        layer_ids=(1, 3),
        top_k=4,
        num_experts=32,
        max_tokens=40,
        num_slots=8,
        with_weights=True,
        with_margins=True,
    )
    made = RoutedExpertsCapturer(shape)
    set_global_experts_capturer(made)
    yield made
    set_global_experts_capturer(None)


def draw(rows, seed=0):
    return torch.randn(rows, 32, generator=torch.Generator().manual_seed(seed))


@every_backend
def test_choices_weights_and_margins_of_the_real_rows_are_captured(name, capturer):
    logits = draw(13)
    chosen = create_backend(name, TopKConfig(top_k=4), layer_id=3).select(logits)
    buffer = capturer.device_buffer
    assert torch.equal(buffer.ids[:13, 1].int(), chosen.ids)
    assert torch.equal(buffer.weights[:13, 1], chosen.weights)
    assert torch.equal(buffer.margins[:13, 1], logit_margin(logits, 4))
    for tensor in buffer.tensors():
        assert (tensor[13:] == 0).all() and (tensor[:, 0] == 0).all()


@every_backend
def test_a_layer_that_opted_out_leaves_no_trace_and_chooses_the_same(name, capturer):
    silent = create_backend(name, TopKConfig(top_k=4, allow_routed_experts_capture=False), layer_id=3)
    chosen = silent.select(draw(13))
    assert all((tensor == 0).all() for tensor in capturer.device_buffer.tensors())
    assert torch.equal(chosen.ids, create_backend(name, TopKConfig(top_k=4), layer_id=3).select(draw(13)).ids)


@every_backend
def test_without_a_capturer_or_a_column_it_still_chooses(name, capturer):
    expected = create_backend(name, TopKConfig(top_k=4), layer_id=1).select(draw(5)).ids
    unknown_layer = create_backend(name, TopKConfig(top_k=4), layer_id=2)
    assert torch.equal(unknown_layer.select(draw(5)).ids, expected)
    set_global_experts_capturer(None)
    assert torch.equal(unknown_layer.select(draw(5)).ids, expected)


@every_backend
@pytest.mark.parametrize("renormalize", [True, False])
def test_the_config_says_how_many_experts_and_whether_weights_sum_to_one(name, renormalize):
    chosen = create_backend(name, TopKConfig(top_k=3, renormalize=renormalize), layer_id=0).select(draw(6))
    assert chosen.ids.shape == (6, 3) and chosen.ids.dtype == torch.int32
    sums = chosen.weights.sum(dim=-1)
    assert ((sums - 1).abs() < 1e-6).all() == renormalize


def test_backends_agree_on_experts_and_to_1e_5_on_weights():
    logits = draw(40)
    one, other = (create_backend(name, TopKConfig(top_k=4), 0).select(logits) for name in BACKENDS)
    assert torch.equal(one.ids, other.ids)
    assert (one.weights - other.weights).abs().max() < 1e-5


def test_an_unknown_backend_is_refused_by_name():
    with pytest.raises(UsageError, match="--backend cutlass"):
        create_backend("cutlass", TopKConfig(top_k=4), 0)


@pytest.mark.parametrize("early", [True, False])
def test_an_eager_draft_is_silent_once_it_has_opted_out(early, capturer):
    batch = make_batch([([1, 2, 3], 0, [1, 2, 3])])
    draft = load("builtin:tiny-draft")
    if not early:
        draft.forward(batch, make_kv(draft))
        assert (capturer.device_buffer.ids[:3, 0] != 0).any()
        capturer.device_buffer.ids.zero_()
    disable_routed_experts_capture_for_draft(draft)
    if early:
        draft.init_topk_backend("torch")
    draft.forward(batch, make_kv(draft))
    assert (capturer.device_buffer.ids == 0).all()


def test_padding_of_a_tile_is_never_captured(capturer):
    model = load("builtin:tiny")
    model.forward(make_batch([([1, 2, 3], 0, [1, 2, 3])]), make_kv(model))
    assert (capturer.device_buffer.ids[:3] != 0).any(dim=-1).all()
    assert all((tensor[3:] == 0).all() for tensor in capturer.device_buffer.tensors())
