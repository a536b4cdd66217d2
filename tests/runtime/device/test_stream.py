import random
import threading
import time

import pytest

from moeinspect.errors import EngineError
from moeinspect.runtime.device.event_log import EventLog
from moeinspect.runtime.device.stream import Device


@pytest.fixture
def device():
    device = Device(1, EventLog(0))
    yield device
    device.close()


def test_a_stream_runs_its_work_in_order(device):
    seen = []
    for i in range(50):
        device.compute.submit(lambda i=i: seen.append(i), kind="k", step=i)
    device.compute.synchronize()
    assert seen == list(range(50))


def test_the_host_does_not_wait_for_submitted_work(device):
    gate = threading.Event()
    device.compute.submit(gate.wait, kind="k", step=0)
    done = device.compute.record()
    assert not done.query()
    gate.set()
    done.synchronize()
    assert done.query()


def test_streams_are_ordered_against_each_other_only_by_events(device):
    gate = threading.Event()
    seen = []
    device.compute.submit(gate.wait, kind="k", step=0)
    device.compute.submit(lambda: seen.append("compute"), kind="k", step=0)
    computed = device.compute.record()
    device.copy.submit(lambda: seen.append("copy, not ordered"), kind="k", step=0)
    device.copy.wait(computed)
    device.copy.submit(lambda: seen.append("copy, ordered"), kind="k", step=0)
    copied = device.copy.record()
    time.sleep(0.02)
    gate.set()
    copied.synchronize()
    assert seen == ["copy, not ordered", "compute", "copy, ordered"]


def test_order_by_events_holds_under_random_delays():
    rng = random.Random(0)
    device = Device(1, EventLog(0), jitter=lambda _: time.sleep(rng.random() * 0.002))
    seen = []
    for i in range(30):
        device.compute.submit(lambda i=i: seen.append(i), kind="k", step=i)
        device.copy.wait(device.compute.record())
        device.copy.submit(lambda i=i: seen.append(-i), kind="k", step=i)
        device.compute.wait(device.copy.record())
    device.compute.synchronize()
    device.close()
    assert seen == [value for i in range(30) for value in (i, -i)]


def test_failed_work_reaches_the_host_and_what_follows_is_skipped(device):
    seen = []
    device.compute.submit(lambda: 1 / 0, kind="k", step=0)
    device.compute.submit(lambda: seen.append(1), kind="k", step=1)
    device.copy.wait(device.compute.record())
    copied = device.copy.record()
    with pytest.raises(EngineError, match="ZeroDivisionError"):
        copied.synchronize()
    with pytest.raises(EngineError, match="ZeroDivisionError"):
        device.check()
    assert seen == []


def test_intervals_of_each_lane_are_logged(device):
    device.compute.submit(lambda: time.sleep(0.01), kind="decode", step=7)
    device.compute.synchronize()
    (event,) = device.log.drain()
    assert (event.lane, event.kind, event.step) == ("compute", "decode", 7)
    assert event.end - event.start >= 0.01
    assert device.log.drain() == []


@pytest.mark.parametrize("where", ["record", "wait", "compute"])
def test_a_failure_anywhere_in_a_stream_releases_who_waits_for_it(where):
    def fail(kind):
        if kind == where:
            raise RuntimeError("broken")

    device = Device(1, EventLog(0), jitter=fail)
    device.compute.wait(device.copy.record())
    device.compute.submit(lambda: None, kind="k", step=0)
    with pytest.raises(EngineError, match="broken"):
        device.compute.synchronize()
    device.close()


def test_a_thread_that_cannot_start_its_work_fails_the_device_and_hangs_nobody():
    device = Device(2**40, EventLog(0))
    with pytest.raises(EngineError):
        device.compute.synchronize()
    device.close()
