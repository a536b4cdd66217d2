"""Ctrl-C, SIGTERM, SIGKILL and a full disk: the exit status, no process left, and a file that is right."""

import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from machine import slowdown

from moeinspect.errors import InputError
from moeinspect.trace.reader import read_trace

DISAGG = ["--disagg", "--draft", "builtin:tiny-draft"]
FIRST = [{"id": f"first-{i}", "input_ids": list(range(1 + i, 20)), "max_new_tokens": 4 + i} for i in range(4)]
LONG = [{"id": f"long-{i}", "input_ids": list(range(1, 60)), "max_new_tokens": 400} for i in range(40)]


def ended(path):
    """Number of requests in a trace that is being written."""
    try:
        return len(read_trace(path).requests)
    except InputError:
        return 0


@pytest.fixture
def reference(run, prompts):
    """The first requests alone, undisturbed, by id: ids of experts and tokens."""
    source = prompts(*FIRST, name="reference.jsonl")
    assert (
        run("capture", "--prompts", source, "-o", "reference.h5", "--target-only", "--ignore-eos").status == 0
    )
    return rows_by_id(read_trace("reference.h5"))


def rows_by_id(trace):
    return {
        str(trace.requests.id[i]): (trace.tokens_of(i), trace.rows.expert_ids[trace.row_range(i)])
        for i in range(len(trace.requests))
    }


def assert_right(path, reference, at_least=1):
    """Every request that had ended is in the file, as it comes out undisturbed."""
    trace = read_trace(path)
    assert not trace.run.complete
    seen = {name: rows for name, rows in rows_by_id(trace).items() if name in reference}
    assert len(seen) >= at_least
    for name, (tokens, expert_ids) in seen.items():
        np.testing.assert_array_equal(tokens, reference[name][0])
        np.testing.assert_array_equal(expert_ids, reference[name][1])


def start(spawn, prompts, *options):
    return spawn("capture", "--prompts", prompts(*FIRST, *LONG), "-o", "t.h5", "--ignore-eos", *options)


@pytest.mark.parametrize("options", [[], DISAGG], ids=["unified", "disagg"])
def test_ctrl_c_exits_130_in_two_seconds_and_leaves_no_process(
    spawn, prompts, eventually, reference, tmp_path, options
):
    command = start(spawn, prompts, *options)
    assert eventually(lambda: ended(tmp_path / "t.h5") >= len(FIRST))
    pressed = time.monotonic()
    command.signal_all(signal.SIGINT)
    command.wait()
    assert time.monotonic() - pressed < 2 * slowdown()
    done = command.finish()
    kept = len(read_trace(tmp_path / "t.h5").requests)
    said = f"t.h5 holds the requests that had ended: {kept}\nmoeinspect: error: interrupted\n"
    assert (done.status, done.stdout, done.stderr) == (130, "", said)
    assert eventually(lambda: not command.alive(), timeout=10 * slowdown())
    assert_right(tmp_path / "t.h5", reference, at_least=len(FIRST))


@pytest.mark.long
def test_ctrl_c_leaves_no_temporary_folder(spawn, prompts, eventually, tmp_path, monkeypatch):
    # A short path: multiprocessing puts sockets there, whose names may not be long.
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        command = start(spawn, prompts, *DISAGG)
        assert eventually(lambda: ended(tmp_path / "t.h5") >= 1)
        assert list(Path(folder).iterdir())
        command.signal_all(signal.SIGINT)
        assert command.finish().status == 130
        assert eventually(lambda: not list(Path(folder).iterdir()), timeout=10 * slowdown())


def test_sigterm_ends_the_run_like_ctrl_c(spawn, prompts, eventually, reference, tmp_path):
    command = start(spawn, prompts, *DISAGG)
    assert eventually(lambda: ended(tmp_path / "t.h5") >= 1)
    command.process.send_signal(signal.SIGTERM)
    assert command.finish().status == 130
    assert eventually(lambda: not command.alive(), timeout=10 * slowdown())
    assert_right(tmp_path / "t.h5", reference)


def test_ctrl_c_while_everything_is_being_imported_exits_130(spawn, prompts, eventually):
    command = start(spawn, prompts)
    assert eventually(lambda: b"libtorch" in maps(command.process.pid))
    command.signal_all(signal.SIGINT)
    done = command.finish()
    assert (done.status, done.stderr) == (130, "moeinspect: error: interrupted\n")


def maps(pid):
    """What is mapped into a process."""
    with open(f"/proc/{pid}/maps", "rb") as file:  # noqa: PTH123
        return file.read()


@pytest.mark.parametrize(
    "options", [pytest.param([], marks=pytest.mark.long), DISAGG], ids=["unified", "disagg"]
)
def test_sigkill_leaves_a_right_file_and_no_process(spawn, prompts, eventually, reference, tmp_path, options):
    command = start(spawn, prompts, *options)
    assert eventually(lambda: ended(tmp_path / "t.h5") >= 1)
    command.process.kill()
    assert command.finish().status == -signal.SIGKILL
    assert eventually(lambda: not command.alive(), timeout=10 * slowdown())
    assert_right(tmp_path / "t.h5", reference)


def worker_pids(path, command):
    """Process ids of prefill and decode worker, from the events that have been written."""
    pids = sorted(set(read_trace(path).events.pid.tolist()))
    assert command.process.pid not in pids
    return pids


@pytest.mark.parametrize(
    ("number", "said"),
    [
        pytest.param(signal.SIGKILL, "killed by signal 9", marks=pytest.mark.long),
        (signal.SIGSTOP, "not been heard of for 3 s"),
    ],
)
def test_a_worker_that_dies_or_hangs_is_trouble_and_what_had_ended_is_kept(
    spawn, prompts, eventually, reference, tmp_path, monkeypatch, number, said
):
    monkeypatch.setenv("MOEINSPECT_WORKER_TIMEOUT", "3")
    command = start(spawn, prompts, *DISAGG)
    assert eventually(lambda: ended(tmp_path / "t.h5") >= 1)
    os.kill(worker_pids(tmp_path / "t.h5", command)[-1], number)
    done = command.finish()
    assert done.status == 2
    assert said in done.error
    assert eventually(lambda: not command.alive(), timeout=10 * slowdown())
    assert_right(tmp_path / "t.h5", reference)


def test_sigkill_leaves_no_worker_that_is_stopped(spawn, prompts, eventually, tmp_path):
    command = start(spawn, prompts, *DISAGG)
    assert eventually(lambda: ended(tmp_path / "t.h5") >= 1)
    os.kill(worker_pids(tmp_path / "t.h5", command)[0], signal.SIGSTOP)
    command.process.kill()
    assert eventually(lambda: not command.alive(), timeout=10 * slowdown())


def limited(argv, cwd, limit_bytes):
    """Runs a command that cannot write files beyond a size."""

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))

    return subprocess.run(
        [sys.executable, "-m", "moeinspect", *map(str, argv)],
        cwd=cwd,
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_file_that_cannot_grow_keeps_what_had_ended(prompts, reference, tmp_path):
    wide = [{"id": f"wide-{i}", "input_ids": list(range(1, 800)), "max_new_tokens": 1} for i in range(40)]
    argv = ["capture", "--prompts", prompts(*FIRST, *wide), "-o", "t.h5", "--ignore-eos"]
    argv += ["--max-running-requests", len(FIRST)]
    done = limited(argv, tmp_path, 500_000)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("moeinspect: error: cannot write t.h5: ")
    assert len(done.stderr.splitlines()) == 1
    assert_right(tmp_path / "t.h5", reference)


@pytest.mark.long
def test_a_full_disk_keeps_what_had_ended(run, prompts, reference, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a small disk takes the right to mount one")
    try:
        done = run("capture", "--prompts", prompts(*FIRST, *LONG), "-o", "disk/t.h5", "--ignore-eos")
        assert done.status == 2
        assert "No space left on device" in done.error
        assert_right(disk / "t.h5", reference)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_folder_is_refused(run, prompts, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    done = run("capture", "--prompts", prompts(*FIRST), "-o", "locked/t.h5")
    assert done.status == 2
    assert "its folder does not take a new file" in done.error
