"""Beats arrive while a worker works, silence counts only while somebody listens, and the limit is checked."""

from multiprocessing import Pipe

import pytest

from moeinspect.errors import UsageError
from moeinspect.runtime.processes import heartbeat
from moeinspect.runtime.processes.heartbeat import TIMEOUT_S, Silence, beating, worker_timeout


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_silence_adds_up_until_a_worker_is_heard(clock):
    silence = Silence([0, 1], longest_wait_s=1, clock=clock)
    for _ in range(4):
        clock.now += 1
        silence.listened([1])
    assert silence.longest() == (0, 4)
    assert silence.of(1) == 0
    silence.listened([0])
    assert silence.of(0) == 0


def test_time_in_which_nobody_listened_is_no_silence(clock):
    silence = Silence([0], longest_wait_s=1, clock=clock)
    clock.now += 3600
    silence.listened([])
    assert silence.longest() == (0, 1)


def test_nothing_is_expected_of_a_worker_that_said_goodbye(clock):
    silence = Silence([0], longest_wait_s=1, clock=clock)
    silence.forget(0)
    clock.now += 1
    silence.listened([0])
    assert silence.longest() is None


def test_beats_arrive_while_the_block_runs(monkeypatch):
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.01)
    theirs, ours = Pipe(duplex=False)
    with beating(ours):
        for _ in range(3):
            assert theirs.poll(10)
            theirs.recv_bytes()


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({}, TIMEOUT_S),
        ({"MOEINSPECT_WORKER_TIMEOUT": ""}, TIMEOUT_S),
        ({"MOEINSPECT_WORKER_TIMEOUT": "2.5"}, 2.5),
    ],
)
def test_the_limit_comes_from_the_environment(environ, seconds):
    assert worker_timeout(environ) == seconds


@pytest.mark.parametrize("text", ["soon", "0", "1.9", "-3", "nan", "inf"])
def test_a_limit_that_is_no_usable_number_is_refused_by_name(text):
    with pytest.raises(UsageError, match=f"MOEINSPECT_WORKER_TIMEOUT={text}: not a number of seconds"):
        worker_timeout({"MOEINSPECT_WORKER_TIMEOUT": text})
