"""With graphs, too, any difference from target-only is a bug."""

import functools
from dataclasses import replace

import pytest
from runtime_harness import DRAFT, RandomDelays, RandomPolicy, assert_identical, requests, run, target_only

from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.forward_batch import ForwardMode
from moeinspect.runtime.models.qwen3_moe import Qwen3MoeForCausalLM
from moeinspect.runtime.worker.graph import Graph

PROMPTS = tuple(requests())


@functools.cache
def baseline(dtype="float32", **options):
    return target_only(RunConfig(dtype=dtype, **options), PROMPTS)


@pytest.mark.quick(4)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "options",
    [
        {"overlap": False},
        {"chunked_prefill_size": 8},
        {"chunked_prefill_size": 13, "max_running_requests": 3},
        {"overlap": False, "draft": DRAFT},
        {"draft": DRAFT, "chunked_prefill_size": 8, "num_draft_tokens": 2},
        {"disagg": True, "draft": DRAFT},
        {"draft": DRAFT, "draft_topk": 3, "num_draft_tokens": 6},
        {"draft": DRAFT, "adaptive_draft": True, "num_draft_tokens": 6},
        {"draft": "ngram", "prefix_cache": True, "host_kv_slots": 256, "num_kv_slots": 160},
        {"backend": "bypass", "draft": DRAFT, "prefix_cache": True},
    ],
    ids=lambda options: ",".join(f"{k}={v}" for k, v in options.items()),
)
def test_graphs_give_the_bits_of_target_only(dtype, options):
    assert_identical(run(RunConfig(dtype=dtype, graph=True, **options), PROMPTS), baseline(dtype))


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(4))
def test_random_schedules_give_the_bits_of_target_only(seed):
    config = RunConfig(graph=True, draft=DRAFT if seed % 2 else None, overlap=seed < 2)
    assert_identical(run(config, PROMPTS, policy=RandomPolicy(seed)), baseline())


@pytest.mark.quick(1)
@pytest.mark.parametrize("options", [{"draft": DRAFT}, {"draft": DRAFT, "disagg": True}])
def test_random_delays_on_every_stream_change_nothing(options):
    config = RunConfig(graph=True, temperature=1.0, seed=3, **options)
    assert_identical(run(config, PROMPTS, jitter=RandomDelays(1)), baseline(temperature=1.0, seed=3))


@pytest.mark.quick(1)
@pytest.mark.parametrize("backend", ["torch", "bypass"])
def test_new_weights_are_captured_anew(backend):
    config = RunConfig(weight_updates=((6, "builtin:tiny-updated"),), overlap=False, backend=backend)
    eager, replayed = run(config, PROMPTS), run(replace(config, graph=True), PROMPTS)
    assert_identical(replayed, eager)
    assert {v for ended in eager.values() for v in ended.weight_version.tolist()} == {0, 1}
    for request_id, ended in eager.items():
        assert replayed[request_id].weight_version.tolist() == ended.weight_version.tolist()


def test_the_kernel_that_writes_the_ids_itself_gives_the_same_experts():
    prompts = [replace(PROMPTS[i], prompt_ids=PROMPTS[i].prompt_ids[:3], max_new_tokens=3) for i in (0, 2)]
    want = target_only(RunConfig(), prompts)
    for graph in (False, True):
        seen = run(RunConfig(backend="triton", graph=graph), prompts)
        for request_id, expected in want.items():
            assert seen[request_id].output_ids.tolist() == expected.output_ids.tolist()
            assert seen[request_id].expert_ids.tolist() == expected.expert_ids.tolist()


def test_target_and_draft_replay_graphs_but_for_the_drafts_prefill(monkeypatch):
    eager, replays = [], []
    replay, run_eagerly = Graph.replay, Qwen3MoeForCausalLM.run

    def note(model, batch, kv):
        eager.append((len(model.layers_with_topk()), batch.mode))
        return run_eagerly(model, batch, kv)

    monkeypatch.setattr(Graph, "replay", lambda graph: (replays.append(len(graph)), replay(graph)))
    monkeypatch.setattr(Qwen3MoeForCausalLM, "run", note)
    run(RunConfig(graph=True, draft=DRAFT), PROMPTS[:2])
    assert len(set(replays)) == 2  # launches of the target's layers and of the draft's
    assert set(eager) == {(2, ForwardMode.PREFILL)}


def test_forwards_beyond_the_largest_bucket_run_eagerly_with_the_same_bits(monkeypatch):
    from moeinspect.runtime.worker import graph_runner

    monkeypatch.setattr(graph_runner, "MAX_PREFILL_ROWS", 8)
    monkeypatch.setattr(graph_runner, "MAX_DECODE_ROWS", 2)
    assert_identical(run(RunConfig(graph=True, draft=DRAFT), PROMPTS), baseline())
