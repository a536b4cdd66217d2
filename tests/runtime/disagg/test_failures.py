"""A worker that fails or dies ends the run in bounded time, by name, and leaves nothing behind."""

import multiprocessing
import os
import signal
import time

import pytest
from runtime_harness import DRAFT, requests

from moeinspect.errors import EngineError
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.disagg.worker_group import WorkerGroup
from moeinspect.runtime.engine import LocalRuntime

PROMPTS = requests(8, max_new=40)


def workers():
    return {process.name: process for process in multiprocessing.active_children()}


@pytest.mark.parametrize("name", ["prefill-0", "decode-0"])
@pytest.mark.parametrize("moment", ["starting", "running"])
def test_a_worker_that_is_killed_is_named(name, moment, monkeypatch):
    if moment == "starting":
        wait_for_ready = WorkerGroup.await_each

        def kill_and_wait(group, kind):
            kill(name)
            return wait_for_ready(group, kind)

        monkeypatch.setattr(WorkerGroup, "await_each", kill_and_wait)
    started = time.monotonic()
    ended = []
    with (
        pytest.raises(EngineError, match=f"the {name} worker .* was killed by signal 9"),
        LocalRuntime(RunConfig(disagg=True, draft=DRAFT, max_running_requests=1, ignore_eos=True)) as runtime,
    ):
        for request in runtime.generate(PROMPTS):
            ended.append(request)
            if len(ended) == 1:
                kill(name)
    assert time.monotonic() - started < 20
    assert workers() == {}
    assert len(ended) < len(PROMPTS)
    assert all(len(r.expert_ids) == len(r.prompt_ids) + len(r.output_ids) - 1 for r in ended)


def kill(name):
    process = workers().get(name)
    if process is not None and process.pid is not None:
        os.kill(process.pid, signal.SIGKILL)


class FailOnce:
    """Raises in a worker's stream the first time that something is copied."""

    def __call__(self, kind):
        if kind == "transfer":
            raise RuntimeError("the link is down")


def test_what_a_worker_raises_reaches_the_user_in_one_line():
    with (
        pytest.raises(EngineError) as error,
        LocalRuntime(RunConfig(disagg=True), jitter=FailOnce()) as runtime,
    ):
        list(runtime.generate(PROMPTS))
    assert "prefill-0" in str(error.value) and "the link is down" in str(error.value)
    assert "\n" not in str(error.value)
    assert workers() == {}


def test_a_run_that_is_left_early_ends_its_workers_in_bounded_time():
    with LocalRuntime(RunConfig(disagg=True, ignore_eos=True)) as runtime:
        next(iter(runtime.generate(PROMPTS)))
        started = time.monotonic()
    assert time.monotonic() - started < 2
    assert workers() == {}


def test_requests_that_ended_before_a_worker_died_are_kept():
    kept = []
    with (
        pytest.raises(EngineError),
        LocalRuntime(RunConfig(disagg=True, max_running_requests=1, ignore_eos=True)) as runtime,
    ):
        for request in runtime.generate(PROMPTS):
            kept.append(request.id)
            if len(kept) == 3:
                kill("decode-0")
    assert len(kept) >= 3


def test_workers_that_cannot_be_started_end_the_run_in_one_line(monkeypatch):
    def start(_self):
        raise EOFError("unexpected EOF")

    monkeypatch.setattr(multiprocessing.get_context("forkserver").Process, "start", start)
    with (
        pytest.raises(EngineError, match="prefill-0 worker could not be started: unexpected EOF"),
        LocalRuntime(RunConfig(disagg=True)) as runtime,
    ):
        list(runtime.generate(PROMPTS))
