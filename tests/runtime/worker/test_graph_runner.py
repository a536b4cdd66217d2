"""Replayed graphs give the bits of eager forwards; padding reaches nothing real."""

from dataclasses import replace

import pytest
import torch
from model_harness import load, make_batch, make_kv

from moeinspect.runtime.capture.capturer import (
    CaptureShape,
    RoutedExpertsCapturer,
    set_global_experts_capturer,
)
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.engine import LocalRuntime
from moeinspect.runtime.forward_batch import ForwardMode
from moeinspect.runtime.models.loader import load_model
from moeinspect.runtime.records import PromptRequest
from moeinspect.runtime.worker.forward_runner import ForwardRunner
from moeinspect.runtime.worker.graph import Graph
from moeinspect.runtime.worker.graph_runner import GraphRunner, row_buckets

PREFILL, DECODE, VERIFY = ForwardMode.PREFILL, ForwardMode.DECODE, ForwardMode.VERIFY
MAX_ROWS = 24
MOE = [1, 2, 3]
"""The MoE layers of builtin:random; layer 0 is dense."""


@pytest.fixture
def capturer():
    shape = CaptureShape((0, 1, 2, 3), top_k=4, num_experts=32, max_tokens=MAX_ROWS, num_slots=200)
    made = RoutedExpertsCapturer(shape)
    set_global_experts_capturer(made)
    yield made
    set_global_experts_capturer(None)


def runners(dtype=torch.float32, deterministic=True, backend="torch"):
    """An eager and a graph runner of the same model, each with its own KV."""
    model = load(dtype=dtype, deterministic=deterministic)
    eager = ForwardRunner(model, make_kv(model), backend=backend)
    graph = GraphRunner(
        load(dtype=dtype, deterministic=deterministic), make_kv(model), backend=backend, max_rows=MAX_ROWS
    )
    for runner in (eager, graph):
        runner.initialize()
    return eager, graph


def steps():
    """Chunks, decodes and verifies of growing and shrinking batches; KV slots out of order."""
    slots = [[s * 60 + (7 * j) % 60 + 1 for j in range(60)] for s in range(3)]
    prompt = list(range(3, 40))
    yield PREFILL, [(prompt[:20], 0, slots[0])]
    yield PREFILL, [(prompt[20:25], 20, slots[0]), (prompt[:2], 0, slots[1])]
    yield DECODE, [([5], 25, slots[0]), ([9], 2, slots[1])]
    yield PREFILL, [([1], 0, slots[2])]
    yield VERIFY, [([4, 8, 1], 26, slots[0]), ([1, 2, 3], 3, slots[1]), ([7, 7, 7], 1, slots[2])]
    yield DECODE, [([6], 4, slots[2])]
    yield VERIFY, [([i], 10 + i, slots[0]) for i in range(7)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_replays_give_the_bits_of_eager_forwards(dtype, capturer):
    eager, graph = runners(dtype)
    for mode, parts in steps():
        batch = make_batch(parts, mode)
        outputs, rows = [], []
        for runner in (eager, graph):
            capturer.device_buffer.ids.zero_()
            outputs.append(runner.run(batch))
            rows.append(capturer.device_buffer.ids.clone())
        assert torch.equal(outputs[0].logits, outputs[1].logits)
        assert torch.equal(outputs[0].slots, outputs[1].slots)
        assert torch.equal(rows[0], rows[1])
        assert torch.equal(eager.kv.data, graph.kv.data)


def test_nothing_is_stored_or_captured_while_graphs_are_captured(capturer):
    _, graph = runners()
    assert not graph.kv.data.any() and not capturer.device_buffer.ids.any()


def test_graphs_are_captured_on_the_compute_stream_before_the_first_forward():
    with LocalRuntime(RunConfig(graph=True, draft="builtin:tiny-draft")) as runtime:
        list(runtime.generate([PromptRequest("r", (1, 2, 3), 3)]))
        kinds = [event.kind for event in runtime.drain_events() if event.lane == "compute"]
    assert kinds[:2] == ["graph-capture"] * 2
    assert kinds.index("prefill") > 1 and "graph-capture" not in kinds[2:]


def test_a_batch_that_fits_no_bucket_runs_eagerly(monkeypatch, capturer):
    eager, graph = runners()
    batch = make_batch([(list(range(MAX_ROWS + 1)), 0, list(range(1, 60)))])
    monkeypatch.setattr(Graph, "replay", lambda self: pytest.fail("replayed"))
    set_global_experts_capturer(None)
    assert torch.equal(eager.run(batch).logits, graph.run(batch).logits)


def test_a_batch_that_fits_runs_no_python_of_the_layers(monkeypatch, capturer):
    _, graph = runners()
    monkeypatch.setattr(type(graph.model), "run", lambda *_: pytest.fail("eager"))
    monkeypatch.setattr(type(graph.model), "run_layers", lambda *_: pytest.fail("eager"))
    for mode, parts in steps():
        graph.run(make_batch(parts, mode))


def test_a_graph_keeps_the_backends_that_it_was_captured_with(capturer):
    _, graph = runners()
    for layer in graph.model.layers_with_topk():
        layer.topk_config = replace(layer.topk_config, allow_routed_experts_capture=False)
    graph.run(make_batch([([1, 2, 3], 0, [1, 2, 3])]))
    assert capturer.device_buffer.ids[:3, MOE].any(-1).all()
    capturer.device_buffer.ids.zero_()
    graph.run(make_batch([(list(range(MAX_ROWS + 1)), 0, list(range(1, 60)))]))  # too large: runs eagerly
    assert not capturer.device_buffer.ids.any()


def test_without_prefill_graphs_chunks_run_eagerly_and_decodes_do_not(monkeypatch, capturer):
    model = load()
    graph = GraphRunner(model, make_kv(model), backend="torch", max_rows=MAX_ROWS, prefill=False)
    graph.initialize()
    replays = []
    replay = Graph.replay
    monkeypatch.setattr(Graph, "replay", lambda graph: (replays.append(1), replay(graph)))
    for mode, parts in steps():
        before = len(replays)
        graph.run(make_batch(parts, mode))
        assert len(replays) - before == (mode is not PREFILL)


def test_a_replaced_model_is_captured_anew(capturer):
    eager, graph = runners()
    other = load_model("builtin:random", dtype=torch.float32, deterministic=True)
    other.layers_with_topk()[0]._router._weight.neg_()
    eager.replace_model(other)
    batch = make_batch([([1, 2, 3], 0, [1, 2, 3])])
    before = graph.run(batch).logits
    graph.replace_model(other)
    assert not torch.equal(before, graph.run(batch).logits)
    assert torch.equal(eager.run(batch).logits, graph.run(batch).logits)


def test_without_determinism_replays_agree_with_eager_forwards_to_rounding(capturer):
    eager, graph = runners(deterministic=False)
    for mode, parts in steps():
        batch = make_batch(parts, mode)
        assert torch.allclose(eager.run(batch).logits, graph.run(batch).logits, atol=1e-4)


@pytest.mark.parametrize("max_rows, expected", [(1, (1,)), (2, (1, 2)), (5, (1, 2, 4, 5)), (8, (1, 2, 4, 8))])
def test_buckets_double_up_to_the_largest_batch(max_rows, expected):
    assert row_buckets(max_rows) == expected
