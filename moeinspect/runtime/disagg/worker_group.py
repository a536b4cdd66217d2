"""The worker processes of a run: starting them, hearing from them, noticing that one died, ending them."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TypeVar

from moeinspect.errors import EngineError
from moeinspect.runtime.disagg.channel import Channels
from moeinspect.runtime.disagg.messages import Failed, Goodbye, Ready, Shutdown, WorkerMessage
from moeinspect.runtime.disagg.worker_args import WorkerArgs
from moeinspect.runtime.disagg.worker_process import worker_main

_M = TypeVar("_M", Ready, Goodbye)

EXIT_GRACE_S = 0.5
"""How long a worker may take to end by itself before it is killed."""

BODY = "moeinspect.runtime.disagg.worker_process"

MakeArgs = Callable[[int, Channels], WorkerArgs]
"""What the worker of this index is started with, given its connections."""


@dataclass(slots=True)
class Worker:
    """A worker process as the balancer sees it."""

    index: int
    name: str
    process: BaseProcess
    connection: Connection
    ended: bool = False


class WorkerGroup:
    """Every worker process of a run; between each two that meet there is a connection."""

    def __init__(self, names: Sequence[str], links: Sequence[tuple[int, int]], make_args: MakeArgs) -> None:
        """Starts the workers; `links` are pairs of indices in `names` that talk to each other.

        Raises:
            EngineError: a worker could not be started.
        """
        # A fork server imports torch once and forks workers from a process that has no threads.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([BODY])
        self._workers: list[Worker] = []
        pairs = {link: self._context.Pipe() for link in links}
        try:
            for index, name in enumerate(names):
                peers = {other: ends[0] for (one, other), ends in pairs.items() if one == index}
                peers |= {one: ends[1] for (one, other), ends in pairs.items() if other == index}
                self._start(index, name, peers, make_args)
        except BaseException:
            self.close()
            raise
        finally:
            for ends in pairs.values():
                for end in ends:
                    end.close()

    def _start(self, index: int, name: str, peers: dict[int, Connection], make_args: MakeArgs) -> None:
        ours, theirs = self._context.Pipe()
        args = make_args(index, Channels(theirs, peers))
        process = self._context.Process(target=worker_main, args=(args,), name=name, daemon=True)
        try:
            _start(process)
        finally:
            theirs.close()
        self._workers.append(Worker(index, name, process, ours))

    def send(self, index: int, message: object) -> None:
        """Sends `message` to one worker.

        Raises:
            EngineError: a worker died.
        """
        try:
            self._workers[index].connection.send(message)
        except (BrokenPipeError, ConnectionError):
            self._raise_death()

    def receive(self, *, one: bool = False) -> Iterator[tuple[Worker, WorkerMessage]]:
        """Messages that have arrived, after waiting for at least one.

        Raises:
            EngineError: a worker died, or says that it failed.
        """
        by_connection = {worker.connection: worker for worker in self._workers if not worker.ended}
        for ready in wait(list(by_connection)):
            worker = by_connection[ready]  # type: ignore[index]
            try:
                message: WorkerMessage = worker.connection.recv()
            except (EOFError, ConnectionError):
                self._raise_death()
            if isinstance(message, Failed):
                self._raise_failure(worker, message)
            worker.ended = isinstance(message, Goodbye)
            yield worker, message
            if one:
                return

    def await_each(self, kind: type[_M]) -> list[_M]:
        """One message of this kind from every worker.

        Raises:
            EngineError: a worker died, failed, or sent something else.
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
        """Ends the workers in bounded time; those that have work left are killed."""
        deadline = time.monotonic() + EXIT_GRACE_S
        for worker in self._workers:
            worker.connection.close()
        for worker in self._workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.process.close()
        self._workers = []

    def _raise_failure(self, worker: Worker, failure: Failed) -> None:
        if failure.peer is not None:
            # A link breaks when the process at its other end dies: that one is to be named.
            self._raise_if_dead()
        raise EngineError(f"the {worker.name} worker failed: {failure.message}", failure.hint)

    def _raise_death(self) -> None:
        self._raise_if_dead()
        raise EngineError("a worker closed its connection before its requests had ended")

    def _raise_if_dead(self) -> None:
        """Names the worker that died; one that ended well because another was gone is not it."""
        deadline = time.monotonic() + EXIT_GRACE_S
        while True:
            for worker in self._workers:
                if worker.process.exitcode:
                    raise _death(worker, worker.process.exitcode)
            running = [worker.process.sentinel for worker in self._workers if worker.process.is_alive()]
            if not running or not wait(running, max(0.0, deadline - time.monotonic())):
                return


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C waits while a process starts; what starts here inherits that it is deaf to it."""
    # Starting the resource tracker lets interrupts in again, so it has to be there before.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(process: BaseProcess) -> None:
    try:
        with _interrupts_held():
            process.start()
    except (EOFError, OSError) as error:
        raise EngineError(
            f"the {process.name} worker could not be started: {error}", "see the system log, then try again"
        ) from error


def _death(worker: Worker, code: int) -> EngineError:
    how = f"was killed by signal {-code}" if code < 0 else f"exited with status {code}"
    return EngineError(
        f"the {worker.name} worker (pid {worker.process.pid}) {how}",
        "see the system log for what ended it; requests that had ended before are kept",
    )
