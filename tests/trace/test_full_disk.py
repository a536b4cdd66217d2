"""A disk that fills up while a trace is written: one error, and what had been written stays right."""

import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from trace_samples import make_record, open_writer

from moeinspect.errors import OutputError
from moeinspect.trace.reader import read_trace

PROGRAM = """
import resource, signal, sys
sys.path.insert(0, sys.argv[3])
from trace_samples import make_record, open_writer
from moeinspect.errors import OutputError
import moeinspect.trace.writer as writer_module

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
if sys.argv[4] == "unforeseen":
    writer_module.require_space = lambda *_: None
writer = open_writer(sys.argv[1])
limit = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
written = 0
try:
    with writer:
        for seed in range(10_000):
            writer.append(make_record(seed, prompt=200))
            written += 1
except OutputError as error:
    print(written, error, sep="\\n")
"""


def run_with_limit(path, limit, how):
    """Appends until the file size limit is met. Returns the number of requests written and the error."""
    arguments = [str(path), str(limit), str(Path(__file__).parents[1]), how]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=120
    )
    assert done.stderr == ""
    assert done.returncode == 0
    written, error = done.stdout.splitlines()
    return int(written), error


def check(path, written):
    trace = read_trace(path)
    assert len(trace.requests) == written
    assert not trace.run.complete
    for number in range(written):
        record = make_record(number, prompt=200)
        assert np.array_equal(trace.rows.expert_ids[trace.row_range(number)], record.expert_ids)
        assert np.array_equal(trace.tokens_of(number), [*record.prompt_ids, *record.output_ids])


@pytest.mark.parametrize("limit", [900_000, 1_234_567])
def test_a_limit_that_is_foreseen_leaves_a_cleanly_closed_file(tmp_path, limit):
    path = tmp_path / "t.h5"
    written, error = run_with_limit(path, limit, "foreseen")
    assert written > 0
    assert error == (
        f"cannot write {path}: File too large; the file holds every request that had ended before: {written}"
    )
    check(path, written)
    with h5py.File(path, "r") as file:
        assert file.attrs["complete"] == 0
        assert len(file["requests/id"]) == written


@pytest.mark.parametrize("limit", [900_000, 900_100, 1_000_000, 1_100_001])
def test_a_write_that_fails_inside_hdf5_loses_no_earlier_request(tmp_path, limit):
    path = tmp_path / "t.h5"
    written, error = run_with_limit(path, limit, "unforeseen")
    assert written > 0
    assert error.startswith(f"cannot write {path}: File too large; ")
    check(path, written)
    with h5py.File(path, "r", swmr=True) as file:
        assert len(file["requests/id"]) == written


def test_a_limit_below_the_empty_file_leaves_no_file(tmp_path):
    path = tmp_path / "t.h5"
    program = PROGRAM.replace("writer = open_writer(sys.argv[1])", "").replace(
        "    with writer:", "    with open_writer(sys.argv[1]) as writer:"
    )
    arguments = [str(path), "1000", str(Path(__file__).parents[1]), "foreseen"]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout == f"0\ncannot write {path}: File too large\n"
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB; only root can mount one, and not everywhere."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting is not permitted here")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.parametrize("how", ["foreseen", "unforeseen"])
def test_a_full_disk_loses_no_earlier_request(small_disk, monkeypatch, how):
    if how == "unforeseen":
        monkeypatch.setattr("moeinspect.trace.writer.require_space", lambda *_: None)
    path = small_disk / "t.h5"
    written = 0
    with pytest.raises(OutputError, match="No space left on device"), open_writer(path) as writer:
        for seed in range(10_000):
            writer.append(make_record(seed, prompt=200))
            written += 1
    assert written > 0
    check(path, written)


def test_a_disk_that_is_full_from_the_start_leaves_no_file(small_disk):
    (small_disk / "ballast").write_bytes(bytes(2**20 - 4096))
    with pytest.raises(OutputError, match="No space left on device"):
        open_writer(small_disk / "t.h5")
    assert [entry.name for entry in small_disk.iterdir()] == ["ballast"]
