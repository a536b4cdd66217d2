"""Worker processes that are forked on this machine."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from moeinspect.errors import EngineError
from moeinspect.runtime.parallel.links import LOOPBACK
from moeinspect.runtime.processes.channel import Channels
from moeinspect.runtime.processes.launcher import MakeArgs, WorkerProcess
from moeinspect.runtime.processes.rendezvous import FileRendezvous
from moeinspect.runtime.processes.worker_args import WorkerArgs
from moeinspect.runtime.processes.worker_process import worker_main

_PR_SET_PDEATHSIG = 1


class ForkedProcesses:
    """Forks every worker from a fork server, which imports torch once and has no threads."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([__name__])

    def rendezvous(self) -> FileRendezvous:
        """See `Launcher.rendezvous`."""
        return FileRendezvous()

    def launch(
        self, names: Sequence[str], links: Sequence[tuple[int, int]], make_args: MakeArgs
    ) -> Iterator[WorkerProcess]:
        """See `Launcher.launch`."""
        ends = {link: self._context.Pipe() for link in links}
        try:
            for index, name in enumerate(names):
                peers = {b: pipe[0] for (a, b), pipe in ends.items() if a == index}
                peers |= {a: pipe[1] for (a, b), pipe in ends.items() if b == index}
                yield self.start(index, name, peers, make_args)
        finally:
            for pipe in ends.values():
                for end in pipe:
                    end.close()

    def start(
        self,
        index: int,
        name: str,
        peers: dict[int, Connection],
        make_args: MakeArgs,
        host: str = LOOPBACK,
    ) -> WorkerProcess:
        """Starts one worker, which others reach at `host`; `peers` stay the caller's to close.

        Raises:
            EngineError: it could not be started.
        """
        ours, theirs = self._context.Pipe()
        heartbeat, heart = self._context.Pipe(duplex=False)
        args = make_args(index, Channels(theirs, peers, heart, host))
        process = self._context.Process(target=_body, args=(args,), name=name, daemon=True)
        try:
            _start(process)
        except BaseException:
            ours.close()
            heartbeat.close()
            raise
        finally:
            theirs.close()
            heart.close()
        return WorkerProcess(index, name, ForkedProcess(process), ours, heartbeat)


class ForkedProcess:
    """The handle of a forked worker."""

    ends_all = False

    def __init__(self, process: BaseProcess) -> None:
        self._process = process

    @property
    def where(self) -> str:
        """Its process id."""
        return f"pid {self._process.pid}"

    def death(self) -> str | None:
        """See `ProcessHandle.death`."""
        code = self._process.exitcode
        if not code:
            return None
        return f"was killed by signal {-code}" if code < 0 else f"exited with status {code}"

    def end(self, timeout_s: float) -> None:
        """See `ProcessHandle.end`; also ends a process that is stopped."""
        self._process.join(timeout_s)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()


def _body(args: WorkerArgs) -> None:
    _die_with_parent()
    worker_main(args)


def _die_with_parent() -> None:
    """A stopped process cannot notice that everybody else has gone; the kernel kills it then.

    The parent is the fork server, which ends when nobody holds a certain pipe any more. That is to be the
    main process alone: workers get the pipe too, to fork others, which they do not.
    """
    server: Any = forkserver._forkserver
    if (alive := getattr(server, "_forkserver_alive_fd", None)) is not None:
        os.close(alive)
        server._forkserver_alive_fd = None
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


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
