"""A worker that hangs ends the run in bounded time, by name, and leaves nothing behind."""

import multiprocessing
import os
import signal
import time

import pytest
from machine import slowdown
from runtime_harness import requests

from moeinspect.errors import EngineError
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.engine import LocalRuntime
from moeinspect.runtime.processes.worker_group import WorkerGroup

PROMPTS = requests(8, max_new=40)
LIMIT_S = 3


def workers():
    return {process.name: process for process in multiprocessing.active_children()}


@pytest.fixture(autouse=True)
def short_limit(monkeypatch):
    monkeypatch.setenv("MOEINSPECT_WORKER_TIMEOUT", str(LIMIT_S))


@pytest.mark.quick(2)
@pytest.mark.parametrize("transfer", ["shm", "gloo"])
@pytest.mark.parametrize("name", ["prefill-0", "decode-0"])
@pytest.mark.parametrize("moment", ["starting", "running"])
def test_a_worker_that_is_stopped_is_named(moment, name, transfer, monkeypatch):
    stopped = []

    def stop():
        stopped.append(workers()[name].pid)
        os.kill(stopped[0], signal.SIGSTOP)

    if moment == "starting":
        wait_for_ready = WorkerGroup.await_each

        def stop_and_wait(group, kind):
            stop()
            return wait_for_ready(group, kind)

        monkeypatch.setattr(WorkerGroup, "await_each", stop_and_wait)
    config = RunConfig(disagg=True, transfer=transfer, max_running_requests=1, ignore_eos=True)
    ended = []
    with pytest.raises(EngineError) as error, LocalRuntime(config) as runtime:
        for request in runtime.generate(PROMPTS):
            ended.append(request)
            if len(ended) == 1:
                stop()
                since = time.monotonic()
    if moment == "running":
        assert time.monotonic() - since < LIMIT_S + 3 * slowdown()
    assert f"the {name} worker (pid {stopped[0]}) has not been heard of for 3 s" in str(error.value)
    assert "MOEINSPECT_WORKER_TIMEOUT" in error.value.hint
    assert workers() == {}
    assert len(ended) < len(PROMPTS)


class SlowStart:
    """The first forward takes longer than a worker may be silent."""

    def __init__(self):
        self._slept = False

    def __call__(self, kind):
        if kind == "compute" and not self._slept:
            self._slept = True
            time.sleep(LIMIT_S + 1)


def test_a_worker_of_which_only_beats_are_heard_is_left_alone():
    with LocalRuntime(RunConfig(disagg=True), jitter=SlowStart()) as runtime:
        assert len(list(runtime.generate(requests(1, max_new=2)))) == 1
