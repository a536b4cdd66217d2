"""The router of hash-routed layers: experts by token, weights by score, captured through the gate."""

import pytest
import torch

from moeinspect.kernels.router_topk.reference import router_topk
from moeinspect.runtime.capture.capturer import (
    CaptureShape,
    RoutedExpertsCapturer,
    set_global_experts_capturer,
)
from moeinspect.runtime.topk.backend import TopKOutput
from moeinspect.runtime.topk.config import TopKConfig
from moeinspect.runtime.topk.names import BUILTIN_BACKENDS
from moeinspect.runtime.topk.registry import hash_router_factory

TABLE = torch.tensor([[3, 0], [1, 2], [7, 4]], dtype=torch.int32)
TOKENS = torch.tensor([2, 0, 0, 1])
LOGITS = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
LAYER = 3


@pytest.fixture
def capturer():
    shape = CaptureShape(
        (1, LAYER), top_k=2, num_experts=8, max_tokens=6, num_slots=4, with_weights=True, with_margins=True
    )
    made = RoutedExpertsCapturer(shape)
    set_global_experts_capturer(made)
    yield made
    set_global_experts_capturer(None)


def numbered(x, chosen):
    """Experts that multiply a row by their number."""
    return x * (chosen.ids * chosen.weights).sum(-1, keepdim=True)


def run(backend="torch", **changes):
    router = hash_router_factory(backend, TABLE)(TopKConfig(2, **changes), LAYER)
    return router.run(torch.ones(4, 5), LOGITS, TOKENS, numbered)


@pytest.mark.parametrize("backend", BUILTIN_BACKENDS)
def test_a_rows_experts_are_those_of_its_token_whatever_the_backend(backend, capturer):
    output = run(backend)
    ids, weights, margins = (tensor[:, 1] for tensor in capturer.device_buffer.tensors())
    assert ids[:4].tolist() == TABLE[TOKENS].tolist()
    assert torch.equal(output, numbered(torch.ones(4, 5), TopKOutput(ids[:4].int(), weights[:4])))
    assert margins[:4].isposinf().all()
    assert not ids[4:].any() and not margins[4:].any()
    assert not any(tensor[:, 0].any() for tensor in capturer.device_buffer.tensors())


@pytest.mark.parametrize("renormalize", [True, False])
def test_weights_are_the_scores_that_a_ranking_would_give_these_experts(renormalize, capturer):
    ranked, weights = router_topk(LOGITS, 2, renormalize=renormalize)
    router = hash_router_factory("torch", ranked)(TopKConfig(2, renormalize=renormalize), LAYER)
    chosen = router.select(LOGITS, torch.arange(4))
    assert torch.equal(chosen.ids, ranked) and torch.equal(chosen.weights, weights)


@pytest.mark.parametrize("backend", ["torch", "bypass"])
def test_a_layer_that_opted_out_is_not_captured_and_computes_the_same(backend, capturer):
    silent = run(backend, allow_routed_experts_capture=False)
    assert not any(tensor.any() for tensor in capturer.device_buffer.tensors())
    assert torch.equal(silent, run(backend))
