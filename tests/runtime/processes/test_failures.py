"""A worker that fails or dies ends the run in bounded time, by name, and leaves nothing behind."""

import multiprocessing
import os
import signal
import tempfile
import threading
import time

import pytest
from machine import slowdown
from runtime_harness import DRAFT, requests

from moeinspect.errors import EngineError
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.engine import LocalRuntime
from moeinspect.runtime.processes.worker_group import WorkerGroup

PROMPTS = requests(8, max_new=40)
SEVERAL = {"prefill_workers": 2, "decode_workers": 2}


def workers():
    return {process.name: process for process in multiprocessing.active_children()}


@pytest.mark.quick(5)
@pytest.mark.parametrize(
    "options", [{}, {**SEVERAL, "transfer": "gloo"}, SEVERAL], ids=["shm", "gloo", "2x2"]
)
@pytest.mark.parametrize("side", ["prefill", "decode"])
@pytest.mark.parametrize("moment", ["starting", "running"])
def test_a_worker_that_is_killed_is_named(side, moment, options, monkeypatch):
    name = f"{side}-{1 if options else 0}"
    config = RunConfig(disagg=True, draft=DRAFT, max_running_requests=1, ignore_eos=True, **options)
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
        LocalRuntime(config) as runtime,
    ):
        for request in runtime.generate(PROMPTS):
            ended.append(request)
            if len(ended) == 1:
                kill(name)
    assert time.monotonic() - started < 20 * slowdown()
    assert workers() == {}
    assert len(ended) < len(PROMPTS)
    assert all(len(r.expert_ids) == len(r.prompt_ids) + len(r.output_ids) - 1 for r in ended)


def kill(name):
    process = workers().get(name)
    if process is not None and process.pid is not None:
        os.kill(process.pid, signal.SIGKILL)


class DieInTransfer:
    """Kills the worker of this name when it is about to move KV."""

    def __init__(self, name):
        self._name = name

    def __call__(self, kind):
        if kind == "transfer" and multiprocessing.current_process().name == self._name:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("name", ["prefill-1", "decode-1"])
def test_a_worker_that_dies_in_a_transfer_over_gloo_is_named(name, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    started = time.monotonic()
    config = RunConfig(disagg=True, transfer="gloo", ignore_eos=True, **SEVERAL)
    with (
        pytest.raises(EngineError, match=f"the {name} worker .* was killed by signal 9"),
        LocalRuntime(config, jitter=DieInTransfer(name)) as runtime,
    ):
        list(runtime.generate(PROMPTS))
    assert time.monotonic() - started < 20 * slowdown()
    assert workers() == {} and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("transfer", ["shm", "gloo"])
def test_ctrl_c_ends_workers_that_hang(transfer):
    with (
        pytest.raises(KeyboardInterrupt),
        LocalRuntime(RunConfig(disagg=True, transfer=transfer, ignore_eos=True, **SEVERAL)) as runtime,
    ):
        answers = iter(runtime.generate(PROMPTS))
        next(answers)
        for name in ("prefill-1", "decode-0"):
            os.kill(workers()[name].pid, signal.SIGSTOP)
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        started = time.monotonic()
        list(answers)
    assert time.monotonic() - started < 3 * slowdown()
    assert workers() == {}


def test_nothing_of_the_rendezvous_is_left_while_requests_run(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with LocalRuntime(RunConfig(disagg=True, transfer="gloo")) as runtime:
        for _ in runtime.generate(PROMPTS):
            assert list(tmp_path.iterdir()) == []


class FailOnce:
    """Raises in a worker's stream the first time that something is copied."""

    def __call__(self, kind):
        if kind == "transfer":
            raise RuntimeError("the link is down")


@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[:1]], ids=["many", "one"])
def test_what_a_worker_raises_reaches_the_user_in_one_line(prompts):
    with (
        pytest.raises(EngineError) as error,
        LocalRuntime(RunConfig(disagg=True), jitter=FailOnce()) as runtime,
    ):
        list(runtime.generate(prompts))
    assert "prefill-0" in str(error.value) and "the link is down" in str(error.value)
    assert "\n" not in str(error.value)
    assert workers() == {}


def test_a_run_that_is_left_early_ends_its_workers_in_bounded_time():
    with LocalRuntime(RunConfig(disagg=True, ignore_eos=True)) as runtime:
        next(iter(runtime.generate(PROMPTS)))
        started = time.monotonic()
    assert time.monotonic() - started < 2 * slowdown()
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
