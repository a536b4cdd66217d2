"""Files cut short and with flipped bytes: a trace or one line of error comes out, never a crash or a hang.

The damage is done in a process of its own, since what is tested is whether that process survives.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from machine import slowdown
from trace_samples import copy_as_foreign, make_record, open_writer, write_trace

from moeinspect.errors import InputError
from moeinspect.trace.probe import fatal
from moeinspect.trace.reader import read_trace

PROGRAM = """
import random, resource, sys, warnings
from pathlib import Path
import numpy as np
from moeinspect.errors import InputError
from moeinspect.trace.reader import read_trace

path, seed, cuts, flips = sys.argv[1], *map(int, sys.argv[2:])
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
warnings.simplefilter("error")
rng = random.Random(seed)
good = Path(path).read_bytes()
whole = read_trace(path)

def look(data, what):
    Path(path).write_bytes(data)
    try:
        return read_trace(path)
    except InputError as error:
        assert str(error).startswith(path + ": ") and "\\n" not in str(error), (what, error)
    except BaseException as error:
        print(what, type(error), error)
    return None

for _ in range(cuts):
    length = rng.randrange(len(good))
    trace = look(good[:length], f"cut at {length}")
    if trace is not None:
        same = len(trace.requests) == len(whole.requests)
        same = same and np.array_equal(trace.rows.expert_ids, whole.rows.expert_ids)
        same = same and np.array_equal(trace.rows.weights, whole.rows.weights)
        if not (same and np.array_equal(trace.tokens, whole.tokens)):
            print("cut at", length, "goes unnoticed")
for number in range(flips):
    data = bytearray(good)
    end = len(data) if number % 4 == 0 else min(len(data), 32768)  # most metadata stands at the start
    for _ in range(rng.choice([1, 1, 2, 8, 64])):
        data[rng.randrange(end)] = rng.choice([0, 255, rng.randrange(256)])
    look(bytes(data), f"flip {number}")
print("done")
"""


def killed_trace(path):
    """A trace whose writer was killed."""
    pid = os.fork()
    if pid == 0:
        try:
            writer = open_writer(path)
            for seed in range(3):
                writer.append(make_record(seed))
            os.kill(os.getpid(), signal.SIGKILL)
            writer.close()
        finally:
            os._exit(1)
    os.waitpid(pid, 0)
    return path


def foreign_trace(path):
    """The same in the oldest HDF5 format, which has no checksums."""
    return copy_as_foreign(write_trace(path.with_suffix(".tmp")), path, libver="earliest")


@pytest.mark.parametrize("make", [write_trace, killed_trace, foreign_trace])
def test_damage_never_leads_to_a_crash_or_a_wrong_answer(tmp_path, make):
    path = make(tmp_path / "t.h5")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), "1", "15", "30"],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)


def test_every_cut_of_a_complete_trace_is_noticed(tmp_path):
    good = write_trace(tmp_path / "good.h5").read_bytes()
    rng = random.Random(3)
    for length in [1, 7, 8, 47, 48, len(good) - 1, *(rng.randrange(len(good)) for _ in range(30))]:
        (tmp_path / "t.h5").write_bytes(good[:length])
        with pytest.raises(InputError, match=r"damaged, or not a whole file|not an HDF5 file"):
            read_trace(tmp_path / "t.h5")


def test_a_cut_trace_of_a_killed_writer_is_noticed_at_once(tmp_path):
    path = killed_trace(tmp_path / "t.h5")
    good = path.read_bytes()
    started = time.monotonic()
    for share in (0.2, 0.5, 0.8):
        path.write_bytes(good[: int(len(good) * share)])
        with pytest.raises(InputError, match="damaged, or not a whole file"):
            read_trace(path)
    assert time.monotonic() - started < 10 * slowdown()


def test_a_cut_that_only_takes_what_was_never_written_changes_nothing(tmp_path):
    path = killed_trace(tmp_path / "t.h5")
    whole = read_trace(path)
    with path.open("ab") as file:
        file.write(b"\0" * 100)
    assert len(read_trace(path).requests) == len(whole.requests) == 3


def crash(_path):
    os.kill(os.getpid(), signal.SIGSEGV)


def spin(_path):
    while True:
        pass


def complain(_path):
    raise RuntimeError("this is not fatal")


@pytest.mark.skipif(sys.platform != "linux", reason="only tried where forking is safe")
def test_what_would_end_the_process_is_found_out_by_a_child(tmp_path, capfd):
    path = tmp_path / "x"
    path.write_bytes(b"x")
    assert fatal(crash, str(path)) == "HDF5 crashes on it (signal 11)"
    assert fatal(spin, str(path)) == "HDF5 does not come to an end with it"
    assert fatal(complain, str(path)) is None
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(sys.platform != "linux", reason="only tried where forking is safe")
def test_an_interrupt_ends_the_child_too(tmp_path):
    program = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored in a shell's background
        "from moeinspect.trace.probe import fatal\n"
        "def slow(path):\n"
        "    open(path, 'w').write('x')\n"
        "    time.sleep(60)\n"
        "fatal(slow, sys.argv[1])\n"
    )
    mark = tmp_path / "mark"
    mark.write_text("")
    process = subprocess.Popen([sys.executable, "-c", program, mark], stderr=subprocess.PIPE)
    while not mark.read_text():
        time.sleep(0.02)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(signal.SIGINT)
    assert b"KeyboardInterrupt" in process.communicate(timeout=20)[1]
    assert len(children) == 1
    assert not Path(f"/proc/{children[0]}").exists()


def test_a_heap_of_strings_that_never_ends_is_refused(tmp_path):
    """The loop itself: an object of length 0 in the heap that holds the attributes' text."""
    path = write_trace(tmp_path / "t.h5")
    data = bytearray(path.read_bytes())
    heap = data.index(b"GCOL")
    data[heap + 16 : heap + 32] = bytes(16)
    shutil.copy(path, tmp_path / "copy.h5")
    path.write_bytes(data)
    with pytest.raises(InputError, match="HDF5 does not come to an end with it"):
        read_trace(path)
