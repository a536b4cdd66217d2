"""Whole runs whose workers are several ranks: the bits of one process, and an end when a rank fails."""

import multiprocessing
import os
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
from machine import slowdown
from runtime_harness import RandomDelays, assert_identical, requests, run, target_only

from moeinspect.errors import EngineError, UsageError
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.engine import LocalRuntime

RANDOM = RunConfig(model="builtin:random")
PROMPTS = requests(6)

RUNS = {
    "dp-draft-graph": {"dp_size": 2, "draft": "builtin:random-draft", "graph": True},
    "tp-disagg-gloo": {"tp_size": 2, "disagg": True, "transfer": "gloo", "redundant_experts": 5},
    # Trees move accepted KV, and few slots bring preemption and the host tier: followers have to go along.
    "pp-tree-preemption": {
        "pp_size": 2,
        "draft": "builtin:random-draft",
        "draft_topk": 2,
        "num_kv_slots": 112,
        "host_kv_slots": 48,
    },
    "dp-tp-disagg": {"dp_size": 2, "tp_size": 2, "disagg": True, "draft": "builtin:random-eagle3"},
    "dp-tp-pp": {"dp_size": 2, "tp_size": 2, "pp_size": 2, "overlap": False},
}


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", RUNS)
def test_a_run_over_ranks_is_the_target_only_run(name):
    seen = run(replace(RANDOM, **RUNS[name]), PROMPTS, jitter=RandomDelays(len(name), most=0.0005))
    assert_identical(seen, target_only(RANDOM, PROMPTS))


def test_rows_name_the_leader_and_requests_the_data_parallel_rank():
    config = replace(RANDOM, dp_size=2, tp_size=2)
    with LocalRuntime(config) as runtime:
        assert runtime.worker_names == ("dp-0/tp-0", "dp-0/tp-1", "dp-1/tp-0", "dp-1/tp-1")
        ended = list(runtime.generate(PROMPTS))
        workers = {event.worker for event in runtime.drain_events() if event.lane == "compute"}
    assert {request.dp_rank for request in ended} == {0, 1}
    assert all(np.all(request.worker == 2 * request.dp_rank) for request in ended)
    assert workers == {0, 1, 2, 3}


def test_new_weights_reach_every_rank():
    updates = ((6, "builtin:random-updated"),)
    alone = run(replace(RANDOM, weight_updates=updates), PROMPTS)
    assert_identical(run(replace(RANDOM, weight_updates=updates, pp_size=2), PROMPTS), alone)
    assert any(np.any(request.weight_version == 1) for request in alone.values())


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"tp_size": 4}, "--tp-size 4: builtin:random has 2 KV heads"),
        ({"pp_size": 7}, "--pp-size 7: builtin:random has 6 layers"),
    ],
)
def test_a_model_that_ranks_cannot_share_is_refused_before_they_start(sizes, message):
    with pytest.raises(UsageError) as error:
        LocalRuntime(replace(RANDOM, **sizes))
    assert message in str(error.value)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("signal_sent", [signal.SIGKILL, signal.SIGSTOP])
def test_a_follower_that_dies_or_hangs_is_named(signal_sent, monkeypatch):
    monkeypatch.setenv("MOEINSPECT_WORKER_TIMEOUT", "3")
    config = replace(RANDOM, dp_size=2, pp_size=2, max_running_requests=1)
    ended = []
    with pytest.raises(EngineError) as error, LocalRuntime(config) as runtime:
        for request in runtime.generate(requests(8, max_new=40)):
            ended.append(request)
            if len(ended) == 1:
                since = time.monotonic()
                worker = next(p for p in multiprocessing.active_children() if p.name == "dp-1/pp-1")
                os.kill(worker.pid, signal_sent)
    assert time.monotonic() - since < 10 * slowdown()
    assert "the dp-1/pp-1 worker" in str(error.value)
    assert multiprocessing.active_children() == []
