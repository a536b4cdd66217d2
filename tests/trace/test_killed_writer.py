"""A writer killed at any moment: every request whose append had returned is there, whole and right."""

import os
import random
import signal
import time

import h5py
import numpy as np
import pytest
from trace_samples import make_events, make_record, open_writer

from moeinspect.trace.reader import read_trace

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
ACKNOWLEDGE = 4
"""Bytes per append that the child reports."""


def start_writer(path, **options):
    """A process that appends requests without end and writes 4 bytes to the returned pipe after each."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write_end)
        return pid, read_end
    try:
        writer = open_writer(path, **options)
        for seed in range(10_000):
            writer.append(make_record(seed, prompt=1 + seed * 37 % 400))
            os.write(write_end, seed.to_bytes(ACKNOWLEDGE, "little"))
            writer.append_events(make_events(3))
    finally:
        os._exit(1)


def acknowledged(read_end, at_least):
    """Number of appends that returned, after `at_least` of them; reads on without waiting."""
    data = b""
    while len(data) < at_least * ACKNOWLEDGE:
        piece = os.read(read_end, 65536)
        assert piece, "the writer ended by itself"
        data += piece
    return data


def kill(pid, read_end, data):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    while piece := os.read(read_end, 65536):
        data += piece
    os.close(read_end)
    return len(data) // ACKNOWLEDGE


def check_with_h5py(path, count):
    with h5py.File(path, "r", swmr=True) as file:
        assert file.attrs["complete"] == 0
        stored = len(file["requests/id"])
        assert count <= stored <= count + 1
        table = {name: column[:stored] for name, column in file["requests"].items()}
        for number in range(stored):
            record = make_record(number, prompt=1 + number * 37 % 400)
            rows = slice(table["row_start"][number], table["row_start"][number] + table["num_rows"][number])
            assert table["id"][number] == record.id.encode()
            assert np.array_equal(file["rows/expert_ids"][rows], record.expert_ids)
            assert np.array_equal(file["rows/weights"][rows], record.weights)
            assert np.array_equal(file["rows/slot"][rows], record.slot)
            length = table["prompt_len"][number] + table["output_len"][number]
            tokens = file["tokens"][table["token_start"][number] :][:length]
            assert np.array_equal(tokens, [*record.prompt_ids, *record.output_ids])


def test_no_request_is_lost_or_wrong_after_a_kill_at_random_moments(tmp_path):
    rng = random.Random(20261201)
    for attempt in range(15):
        path = tmp_path / f"{attempt}.h5"
        pid, read_end = start_writer(path)
        data = acknowledged(read_end, rng.randrange(1, 25))
        time.sleep(rng.random() * 0.003)
        count = kill(pid, read_end, data)
        check_with_h5py(path, count)
        trace = read_trace(path)
        assert count <= len(trace.requests) <= count + 1
        assert not trace.run.complete
        assert len(trace.rows) == int(trace.requests.num_rows.sum())
        last = len(trace.requests) - 1
        record = make_record(last, prompt=1 + last * 37 % 400)
        assert np.array_equal(trace.rows.expert_ids[trace.row_range(last)], record.expert_ids)
        assert trace.notes == (
            f"the run is still going on or was killed; {last + 1} request{'s' * (last > 0)} had ended",
        )
        path.unlink()


def test_a_kill_while_the_file_is_made_leaves_nothing_or_a_readable_trace(tmp_path):
    rng = random.Random(7)
    for attempt in range(10):
        path = tmp_path / f"{attempt}.h5"
        pid, read_end = start_writer(path)
        time.sleep(rng.random() * 0.03)
        count = kill(pid, read_end, b"")
        if path.exists():
            check_with_h5py(path, count)
            assert len(read_trace(path).requests) >= count
        else:
            assert count == 0


def test_a_kill_before_the_first_request_keeps_the_file_that_force_would_replace(tmp_path):
    path = tmp_path / "t.h5"
    path.write_text("old")
    pid = os.fork()
    if pid == 0:
        try:
            writer = open_writer(path, force=True)
            os.kill(os.getpid(), signal.SIGKILL)
            writer.close()
        finally:
            os._exit(1)
    os.waitpid(pid, 0)
    assert path.read_text() == "old"


def test_readers_follow_a_trace_while_another_process_writes_it(tmp_path):
    path = tmp_path / "t.h5"
    pid, read_end = start_writer(path)
    try:
        data, seen = acknowledged(read_end, 1), 0
        with h5py.File(path, "r", swmr=True) as file:
            for _ in range(12):
                before = len(data) // ACKNOWLEDGE
                for column in file["requests"].values():
                    column.refresh()
                file["rows/expert_ids"].refresh()
                stored = len(file["requests/id"])
                row_start = file["requests/row_start"][stored - 1]
                rows = file["rows/expert_ids"][row_start:][: file["requests/num_rows"][stored - 1]]
                expected = make_record(stored - 1, prompt=1 + (stored - 1) * 37 % 400).expert_ids
                assert np.array_equal(rows, expected)
                trace = read_trace(path)
                assert before <= stored <= len(trace.requests)
                assert not trace.run.complete
                last = len(trace.requests) - 1
                expected = make_record(last, prompt=1 + last * 37 % 400).expert_ids
                assert np.array_equal(trace.rows.expert_ids[trace.row_range(last)], expected)
                data += acknowledged(read_end, 1)
                seen = max(seen, stored)
        assert seen > 1
    finally:
        kill(pid, read_end, b"")
