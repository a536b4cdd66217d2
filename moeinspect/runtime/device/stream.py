"""CPU streams that behave like CUDA streams: in order each, ordered against each other only by events.

A stream is a worker thread with a queue. What a caller enqueues returns at once; two streams know nothing
of each other unless one waits for an event of the other. So the hazards of delayed copies and reused
buffers are as real here as on a GPU.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import torch

from moeinspect.errors import EngineError
from moeinspect.runtime.device.event_log import EventLog

Jitter = Callable[[str], None]
"""Called before each `record`, `wait` and operation of a stream; tests sleep at random in it."""

JOIN_TIMEOUT_S = 1.0


class StreamEvent:
    """A point in a stream, as `torch.cuda.Event`: done once everything enqueued before it has run."""

    def __init__(self, failed: Callable[[], BaseException | None]) -> None:
        self._done = threading.Event()
        self._failed = failed

    def query(self) -> bool:
        """Whether the point has been passed."""
        return self._done.is_set()

    def synchronize(self) -> None:
        """Blocks the host until the point has been passed; raises what a stream of the device raised."""
        self._done.wait()
        _raise_failure(self._failed())

    def block(self) -> None:
        """Blocks the calling stream; never raises, so that a failed device still drains."""
        self._done.wait()

    def set(self) -> None:
        """Marks the point as passed; called by the stream."""
        self._done.set()


class DeviceStream:
    """One in-order queue of work with a thread of its own."""

    def __init__(self, lane: str, device: Device) -> None:
        self.lane = lane
        self._device = device
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"moeinspect-{lane}", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], None], *, kind: str, step: int) -> None:
        """Enqueues `work`; it is skipped when the device has failed before its turn."""
        self._queue.put(lambda: self._perform(work, kind, step))

    def record(self) -> StreamEvent:
        """Enqueues a point and returns its event."""
        event = StreamEvent(lambda: self._device.failure)

        def reach() -> None:
            try:
                self._device.jitter("record")
            finally:
                event.set()

        self._queue.put(reach)
        return event

    def wait(self, event: StreamEvent) -> None:
        """What is enqueued after this runs only when `event` is done; the host goes on."""

        def block() -> None:
            self._device.jitter("wait")
            event.block()

        self._queue.put(block)

    def notify(self, callback: Callable[[], None]) -> None:
        """Enqueues a call that also takes place after a failure: who waits for the stream has to know."""
        self._queue.put(callback)

    def synchronize(self) -> None:
        """Blocks the host until everything enqueued so far has run."""
        self.record().synchronize()

    def run(self, work: Callable[[], None], *, kind: str, step: int) -> None:
        """Enqueues `work` and blocks the host until it has run."""
        self.submit(work, kind=kind, step=step)
        self.synchronize()

    def close(self) -> None:
        """Ends the thread after what is enqueued; gives up on it after a second."""
        self._queue.put(None)
        self._thread.join(JOIN_TIMEOUT_S)

    def _perform(self, work: Callable[[], None], kind: str, step: int) -> None:
        if self._device.failure is not None:
            return
        self._device.jitter(self.lane)
        with self._device.log.interval(self.lane, kind, step):
            work()

    def _run(self) -> None:
        # The number of intra-op threads belongs to the calling thread, and bits may depend on it.
        self._guarded(lambda: torch.set_num_threads(self._device.threads))
        with torch.no_grad():
            while (item := self._queue.get()) is not None:
                self._guarded(item)

    def _guarded(self, item: Callable[[], None]) -> None:
        try:
            item()
        except BaseException as error:
            # The thread goes on, so that everything that waits for an event of it is released.
            self._device.failure = self._device.failure or error


class Device:
    """The streams of one worker: compute, copy (device to host) and transfer (to another worker)."""

    def __init__(self, threads: int, log: EventLog, jitter: Jitter | None = None) -> None:
        self.threads = threads
        self.log = log
        self.jitter: Jitter = jitter or (lambda _: None)
        self.failure: BaseException | None = None
        self._streams: list[DeviceStream] = []
        self.compute = self.new_stream("compute")
        self.copy = self.new_stream("copy")
        self.transfer = self.new_stream("transfer")

    def new_stream(self, lane: str) -> DeviceStream:
        """One more stream, closed with the device."""
        self._streams.append(DeviceStream(lane, self))
        return self._streams[-1]

    def check(self) -> None:
        """Raises what a stream raised.

        Raises:
            EngineError: work on a stream failed.
        """
        _raise_failure(self.failure)

    def close(self) -> None:
        """Ends the threads; work that is still enqueued is skipped."""
        if self.failure is None:
            self.failure = EngineError("the device was closed")
        for stream in self._streams:
            stream.close()


def _raise_failure(failure: BaseException | None) -> None:
    if failure is None:
        return
    if isinstance(failure, EngineError):
        raise failure
    raise EngineError(f"a forward failed: {type(failure).__name__}: {failure}") from failure
