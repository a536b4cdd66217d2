"""Commands under torchrun: its processes become the run's workers, and rank 0 alone talks to the user."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from moeinspect.errors import InputError
from moeinspect.trace.reader import read_trace

ROOT = Path(__file__).parents[2]
GLOO = ["--disagg", "--transfer", "gloo"]
SHORT = {"id": "a", "input_ids": [1, 2, 3, 4], "max_new_tokens": 4}


@pytest.fixture
def ranks(tmp_path):
    """Starts a command once for each rank, as torchrun does; ends what is left of it."""
    started = []

    def start(*argv, size=2):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        environ = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        for rank in range(size):
            started.append(
                subprocess.Popen(
                    [sys.executable, "-m", "moeinspect", *map(str, argv)],
                    cwd=tmp_path,
                    env={**environ, "RANK": str(rank)},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
            )
        return started

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def ended(path):
    """Number of requests in a trace that is being written."""
    try:
        return len(read_trace(path).requests)
    except InputError:
        return 0


def finish(processes):
    """Exit status, stdout and stderr of every rank."""
    said = [process.communicate(timeout=180) for process in processes]
    return [(process.returncode, *streams) for process, streams in zip(processes, said, strict=True)]


def test_torchrun_starts_the_workers_of_a_run(run, prompts, tmp_path):
    requests = prompts(SHORT, {"id": "b", "input_ids": [5, 6], "max_new_tokens": 3})
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "moeinspect"]
    command += ["capture", "--prompts", str(requests), "-o", "t.h5", "--tp-size", "2"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Wrote t.h5: 2 requests")
    assert len(done.stdout.splitlines()) == 1
    trace = read_trace(tmp_path / "t.h5")
    assert trace.run.complete
    assert trace.worker_names == ("tp-0", "tp-1")
    assert run("capture", "--prompts", requests, "-o", "alone.h5", "--target-only").status == 0
    alone = read_trace(tmp_path / "alone.h5")
    order = [list(alone.requests.id).index(name) for name in trace.requests.id]
    for position, other in enumerate(order):
        np.testing.assert_array_equal(trace.tokens_of(position), alone.tokens_of(other))
        np.testing.assert_array_equal(
            trace.rows.expert_ids[trace.row_range(position)], alone.rows.expert_ids[alone.row_range(other)]
        )


def test_what_rank_0_refuses_ends_the_others_quietly(ranks, prompts):
    first, other = finish(ranks("capture", "--prompts", prompts(SHORT)))
    assert (first[0], first[1]) == (2, "")
    assert "torchrun started 2 processes, the run has 1: unified" in first[2]
    assert other == (0, "", "")


@pytest.mark.long
def test_a_worker_of_torchrun_that_dies_is_named(ranks, prompts, eventually, tmp_path):
    long = [{"id": str(i), "input_ids": [1, 2, 3], "max_new_tokens": 200 if i else 2} for i in range(20)]
    processes = ranks("capture", "--prompts", prompts(*long), "-o", "t.h5", "--ignore-eos", *GLOO)
    assert eventually(lambda: ended(tmp_path / "t.h5") > 0)
    processes[1].kill()
    (status, stdout, stderr), _ = finish(processes)
    assert (status, stdout) == (2, "")
    assert f"the decode-0 worker (rank 1, pid {processes[1].pid}) went away" in stderr


@pytest.fixture
def rank_0(monkeypatch):
    """This process is rank 0 of a torchrun whose other processes do not wait for it."""

    def become(size=2):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        values = {"RANK": 0, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
        for name, value in {**values, "MASTER_ADDR": "127.0.0.1"}.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setattr("moeinspect.runtime.processes.joining.LEAVE_TIMEOUT_S", 0)

    return become


def test_shared_memory_is_refused_by_name(run, rank_0):
    rank_0()
    done = run("capture", "--disagg")
    assert done.status == 2
    assert done.error.startswith("--transfer shm: processes that torchrun started share no memory")


@pytest.mark.parametrize("command", [["diff", "a.h5"], ["check-duplicates", "a.h5"]], ids=" ".join)
def test_commands_of_one_process_are_refused(run, rank_0, command):
    rank_0()
    done = run(*command)
    assert done.status == 2
    assert f"{command[0]} runs in one process, torchrun started 2" in done.error


def test_one_process_of_torchrun_is_enough_for_a_run_of_one(run, rank_0, prompts):
    rank_0(size=1)
    assert run("capture", "--prompts", prompts(SHORT), "-o", "t.h5").status == 0
    assert "torchrun started 1 processes, the run has 2" in run("capture", *GLOO).error
