"""Every built-in top-k backend; what an outside one must do as well is in `test_conformance`."""

import pytest
import torch
from model_harness import load, make_batch, make_kv

from moeinspect.runtime.capture.capturer import (
    CaptureShape,
    RoutedExpertsCapturer,
    set_global_experts_capturer,
)
from moeinspect.runtime.capture.gate import disable_routed_experts_capture_for_draft
from moeinspect.runtime.layers.experts import Experts
from moeinspect.runtime.topk.config import TopKConfig
from moeinspect.runtime.topk.conformance import check_backend
from moeinspect.runtime.topk.names import BUILTIN_BACKENDS
from moeinspect.runtime.topk.registry import create_backend

selecting_backend = pytest.mark.parametrize("name", ["torch", "triton"])


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


@pytest.mark.parametrize("name", BUILTIN_BACKENDS)
def test_every_built_in_backend_conforms(name):
    check_backend(name)


@selecting_backend
@pytest.mark.parametrize("renormalize", [True, False])
def test_the_config_says_how_many_experts_and_whether_weights_sum_to_one(name, renormalize):
    chosen = create_backend(name, TopKConfig(top_k=3, renormalize=renormalize), layer_id=0).select(draw(6))
    assert chosen.ids.shape == (6, 3) and chosen.ids.dtype == torch.int32
    sums = chosen.weights.sum(dim=-1)
    assert ((sums - 1).abs() < 1e-6).all() == renormalize


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_fused_backend_gives_the_bits_of_torch(dtype, capturer):
    E, H, I = 32, 48, 16  # noqa: E741
    gate_up, down, x, logits = (
        torch.randn(shape, generator=torch.Generator().manual_seed(i)).to(dtype)
        for i, shape in enumerate([(E, 2 * I, H), (E, H, I), (13, H), (13, E)])
    )
    experts = Experts(gate_up, down, tiled=True)
    seen = []
    for name in ("torch", "bypass"):
        output = create_backend(name, TopKConfig(top_k=4), layer_id=3).run(x, logits, experts)
        seen.append([output, *(tensor.clone() for tensor in capturer.device_buffer.tensors())])
    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))


@pytest.mark.parametrize("name", ["torch", "bypass"])
def test_an_eager_draft_is_silent_once_it_has_opted_out(name, capturer):
    batch = make_batch([([1, 2, 3], 0, [1, 2, 3])])
    draft = load("builtin:tiny-draft", backend=name)
    draft.forward(batch, make_kv(draft))
    assert (capturer.device_buffer.ids[:3, 0] != 0).any()
    capturer.device_buffer.ids.zero_()
    disable_routed_experts_capture_for_draft(draft)
    draft.forward(batch, make_kv(draft))
    assert (capturer.device_buffer.ids == 0).all()


def test_padding_of_a_tile_is_never_captured(capturer):
    model = load("builtin:tiny")
    model.forward(make_batch([([1, 2, 3], 0, [1, 2, 3])]), make_kv(model))
    assert (capturer.device_buffer.ids[:3] != 0).any(dim=-1).all()
    assert all((tensor[3:] == 0).all() for tensor in capturer.device_buffer.tensors())


@selecting_backend
@pytest.mark.parametrize("num_columns", [0, 1])
def test_the_column_of_a_shared_expert_is_appended_and_stripped_where_there_is_no_room(name, num_columns):
    shape = CaptureShape((3,), 4, 33, 40, 8, with_weights=True, num_shared_columns=num_columns)
    capturer = RoutedExpertsCapturer(shape)
    set_global_experts_capturer(capturer)
    try:
        config = TopKConfig(top_k=4, num_fused_shared_experts=1)
        chosen = create_backend(name, config, layer_id=3).select(draw(6))
    finally:
        set_global_experts_capturer(None)
    assert (chosen.ids[:, 4] == 32).all() and (chosen.weights[:, 4] == 1).all()
    alone = create_backend(name, TopKConfig(top_k=4), layer_id=3).select(draw(6))
    assert torch.equal(chosen.ids[:, :4], alone.ids) and torch.equal(chosen.weights[:, :4], alone.weights)
    ids, weights = capturer.device_buffer.tensors()
    assert torch.equal(ids[:6, 0].int(), chosen.ids[:, : 4 + num_columns])
    assert torch.equal(weights[:6, 0], chosen.weights[:, : 4 + num_columns])
