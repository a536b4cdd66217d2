"""The model computes what transformers computes; its recorded results are the reference."""

import numpy as np
import pytest
import torch
from model_harness import ORACLE, RoutingProbe, load, make_batch, make_kv

from moeinspect.runtime.forward_batch import ForwardMode

# `variants`: dense layers by step and by list, biases, tied embeddings, weights that are not renormalised,
# 30 experts, an eps of 1e-4, heads wider than hidden / heads.
NAMES = ["qwen3_moe", "qwen3_moe-hubstyle", "qwen3_moe-variants"]


@pytest.fixture(params=NAMES)
def case(request):
    expected = dict(np.load(ORACLE / "expected" / f"{request.param}.fp32.npz"))
    return ORACLE / "checkpoints" / request.param, expected


@pytest.mark.parametrize("deterministic", [True, False])
def test_one_chunk_gives_the_sets_weights_and_logits_of_transformers(case, deterministic):
    path, expected = case
    model = load(path, deterministic=deterministic)
    probe = RoutingProbe(model)
    tokens = expected["tokens"][0].tolist()[:-1]
    logits = model.forward(make_batch([(tokens, 0, list(range(1, 1 + len(tokens))))]), make_kv(model))
    check_routing(model, probe.rows(), expected)
    check_logits(logits, expected)


def test_the_triton_backend_gives_them_too():
    expected = np.load(ORACLE / "expected" / "qwen3_moe.fp32.npz")
    model = load(ORACLE / "checkpoints" / "qwen3_moe", backend="triton")
    probe = RoutingProbe(model)
    tokens = expected["tokens"][0].tolist()[:-1]
    logits = model.forward(make_batch([(tokens, 0, list(range(1, 1 + len(tokens))))]), make_kv(model))
    check_routing(model, probe.rows(), expected)
    check_logits(logits, expected)


def test_chunks_then_decode_give_the_same_as_one_chunk(case):
    path, expected = case
    model = load(path)
    probe = RoutingProbe(model)
    tokens, prompt_len = expected["tokens"][0].tolist()[:-1], int(expected["prompt_len"])
    kv = make_kv(model, fill=7.0)
    slots = [5 * i + 3 for i in range(len(tokens))]
    steps = [(start, min(start + 19, prompt_len)) for start in range(0, prompt_len, 19)]
    steps += [(i, i + 1) for i in range(prompt_len, len(tokens))]
    logits, rows = [], []
    for start, stop in steps:
        mode = ForwardMode.PREFILL if start < prompt_len else ForwardMode.DECODE
        logits.append(model.forward(make_batch([(tokens[start:stop], start, slots[:stop])], mode), kv))
        rows.append(probe.rows())
    check_routing(model, [torch.cat(parts) for parts in zip(*rows, strict=True)], expected)
    check_logits(torch.cat(logits), expected)


def check_routing(model, rows, expected):
    ids, weights, router_logits = (values.numpy() for values in rows)
    layers = expected["moe_layers"].tolist()
    assert list(model.config.moe_layers) == layers
    order = np.argsort(ids, axis=-1, kind="stable")
    np.testing.assert_array_equal(
        np.take_along_axis(ids, order, -1), expected["ids_sorted"][0][:, layers], strict=False
    )
    np.testing.assert_allclose(
        np.take_along_axis(weights, order, -1), expected["weights_sorted"][0][:, layers], atol=1e-5, rtol=0
    )
    np.testing.assert_allclose(router_logits, expected["router_logits"][0][:, layers], atol=1e-4, rtol=0)


def check_logits(logits, expected):
    last = expected["out_logits_last"][0]
    seen = logits[-len(last) :].numpy()
    np.testing.assert_allclose(seen, last, atol=1e-4, rtol=0)
    np.testing.assert_array_equal(seen.argmax(-1), expected["tokens"][0][-len(last) :])


def test_bfloat16_stays_close_to_float32():
    tokens = np.load(ORACLE / "expected" / "qwen3_moe.fp32.npz")["tokens"][0].tolist()
    sets = []
    for dtype in (torch.float32, torch.bfloat16):
        model = load(ORACLE / "checkpoints" / "qwen3_moe", dtype=dtype)
        probe = RoutingProbe(model)
        model.forward(make_batch([(tokens, 0, list(range(1, 1 + len(tokens))))]), make_kv(model))
        sets.append(probe.rows()[0].sort(dim=-1).values)
    assert (sets[0] == sets[1]).all(dim=-1).float().mean() > 0.85
