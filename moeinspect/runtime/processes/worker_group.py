"""The worker processes of a run: talking to them, noticing that one died or hangs, ending them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import TypeVar

from moeinspect.errors import EngineError, WorkerLostError
from moeinspect.runtime.processes.channel import Outbox, hang_up
from moeinspect.runtime.processes.heartbeat import BEAT_S, TIMEOUT_VARIABLE, Silence, worker_timeout
from moeinspect.runtime.processes.launcher import Launcher, MakeArgs, WorkerProcess
from moeinspect.runtime.processes.messages import Failed, Goodbye, Ready, Shutdown, WorkerMessage

_M = TypeVar("_M", Ready, Goodbye)

EXIT_GRACE_S = 0.5
"""How long a worker may take to end by itself before it is killed."""

WAIT_S = 0.5
"""How often the main process looks whether each worker has been heard of."""

NEWS_GRACE_S = 0.02
"""How often it looks whether a worker is dead that is supposed to be."""


class WorkerGroup:
    """Every worker process of a run, by index; between each two that meet there is a connection."""

    def __init__(
        self,
        names: Sequence[str],
        links: Sequence[tuple[int, int]],
        make_args: MakeArgs,
        launcher: Launcher,
    ) -> None:
        """Starts the workers; `links` are pairs of indices in `names` that talk to each other.

        Raises:
            EngineError: a worker could not be started.
            UsageError: the environment gives no usable limit for silent workers.
        """
        self._limit_s = worker_timeout()
        self._workers: list[WorkerProcess] = []
        self._outboxes: list[Outbox] = []
        try:
            for worker in launcher.launch(names, links, make_args):
                self._workers.append(worker)
                self._outboxes.append(Outbox(worker.connection))
        except BaseException:
            self.close()
            raise
        self._sources: dict[Connection, WorkerProcess] = {}
        for worker in self._workers:
            self._sources |= {worker.connection: worker, worker.heartbeat: worker}
        self._silence = Silence((worker.index for worker in self._workers), longest_wait_s=2 * WAIT_S)

    def send(self, index: int, message: object) -> None:
        """Sends `message` to one worker without waiting for it; that it died shows in `receive`."""
        self._outboxes[index].send(message)

    def receive(self, *, one: bool = False) -> Iterator[tuple[WorkerProcess, WorkerMessage]]:
        """Messages that have arrived, after waiting for at least one.

        Raises:
            EngineError: a worker died, hangs, or says that it failed.
        """
        has_news = False
        while not has_news:
            ready = self._wait()
            heard = [self._sources[connection] for connection in ready]
            self._silence.listened(worker.index for worker in heard)
            self._raise_if_silent()
            for worker, connection in zip(heard, ready, strict=True):
                if connection is worker.heartbeat:
                    self._take_beat(worker)
                    continue
                has_news = True
                yield worker, self._message_of(worker)
                if one:
                    return

    def await_each(self, kind: type[_M]) -> list[_M]:
        """One message of this kind from every worker.

        Raises:
            EngineError: a worker died, hangs, failed, or sent something else.
        """
        messages: list[_M] = []
        while len(messages) < len(self._workers):
            for worker, message in self.receive(one=True):
                if not isinstance(message, kind):
                    raise EngineError(
                        f"the {worker.name} worker sent {type(message).__name__}, not {kind.__name__}"
                    )
                messages.append(message)
        return messages

    def shut_down(self) -> list[Goodbye]:
        """Tells every worker that nothing more will come, and waits for their last messages."""
        for worker in self._workers:
            self.send(worker.index, Shutdown())
        return self.await_each(Goodbye)

    def close(self) -> None:
        """Ends the workers in bounded time; those that have work left, or are stopped, are killed."""
        deadline = time.monotonic() + EXIT_GRACE_S
        for worker in self._workers:
            hang_up(worker.connection)
            worker.heartbeat.close()
        for worker in self._workers:
            worker.handle.end(max(0.0, deadline - time.monotonic()))
        for worker, outbox in zip(self._workers, self._outboxes, strict=False):
            outbox.close()
            worker.connection.close()
        self._workers, self._outboxes = [], []

    def _wait(self) -> list[Connection]:
        try:
            return wait(list(self._sources), WAIT_S)  # type: ignore[return-value]
        except KeyboardInterrupt:
            for worker, how in self._deaths():
                if worker.handle.ends_all:
                    raise _dead(worker, how) from None
            raise

    def _take_beat(self, worker: WorkerProcess) -> None:
        try:
            worker.heartbeat.recv_bytes()
        except (EOFError, ConnectionError):
            # What it still had to say, and its end, are on the other connection.
            del self._sources[worker.heartbeat]

    def _message_of(self, worker: WorkerProcess) -> WorkerMessage:
        try:
            message: WorkerMessage = worker.connection.recv()
        except (EOFError, ConnectionError):
            self._raise_if_dead()
            raise EngineError("a worker closed its connection before its requests had ended") from None
        if isinstance(message, Failed):
            self._raise_failure(worker, message)
        if isinstance(message, Goodbye):
            self._silence.forget(worker.index)
            self._sources.pop(worker.connection)
            self._sources.pop(worker.heartbeat, None)
        return message

    def _raise_failure(self, worker: WorkerProcess, failure: Failed) -> None:
        if failure.broken_link:
            # A link breaks when a process at another end dies or hangs: that one is to be named.
            self._raise_if_dead()
            for other in self._workers:
                silent_s = self._silence.of(other.index)
                if failure.peer in (None, other.name) and silent_s > 4 * BEAT_S:
                    raise _silent(other, silent_s)
        raise EngineError(f"the {worker.name} worker failed: {failure.message}", failure.hint)

    def _raise_if_dead(self) -> None:
        """Names the worker that died; one that ended well because another was gone is not it."""
        deadline = time.monotonic() + EXIT_GRACE_S
        while True:
            for worker, how in self._deaths():
                raise _dead(worker, how)
            if time.monotonic() > deadline:
                return
            time.sleep(NEWS_GRACE_S)

    def _deaths(self) -> Iterator[tuple[WorkerProcess, str]]:
        for worker in self._workers:
            if worker.connection in self._sources and (how := worker.handle.death()):
                yield worker, how

    def _raise_if_silent(self) -> None:
        longest = self._silence.longest()
        if longest is not None and longest[1] >= self._limit_s:
            raise _silent(self._workers[longest[0]], longest[1])


def _dead(worker: WorkerProcess, how: str) -> EngineError:
    kind = WorkerLostError if worker.handle.ends_all else EngineError
    return kind(
        f"the {worker.name} worker ({worker.handle.where}) {how}",
        "what it printed or the system log tells why; requests that had ended before are kept",
    )


def _silent(worker: WorkerProcess, seconds: float) -> EngineError:
    return EngineError(
        f"the {worker.name} worker ({worker.handle.where}) has not been heard of for {seconds:.0f} s: it "
        "hangs or is stopped, and is killed",
        f"requests that had ended before are kept; {TIMEOUT_VARIABLE} sets how many seconds to wait",
    )
