"""Runs scenes side by side until the time or the number is up, and ends what does not end by itself."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from confusion_table.outcomes import Outcome
from confusion_table.plan import Plan
from confusion_table.worker import Begun, Task, work

Work = Callable[[Plan, str, Connection], None]
"""What a process does: see `worker.work`."""

_LAST_WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Budget:
    """When to stop: no run starts after `deadline` (`time.time`); at most `scenes` of them.

    `grace`: seconds that runs may go on after the deadline, before they are killed.
    """

    deadline: float
    scenes: int
    grace: float


@dataclass(slots=True)
class _Worker:
    process: ForkServerProcess
    pipe: Connection
    running: Outcome | None = None
    since: float = 0.0

    def took(self, message: Begun | Outcome) -> Outcome | None:
        """Notes what it is doing; the outcome, if it is one."""
        self.running, self.since = (message.outcome, time.time()) if isinstance(message, Begun) else (None, 0)
        return None if isinstance(message, Begun) else message

    def kill(self) -> None:
        """Kills it with all that it started."""
        if self.process.pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.join(_LAST_WAIT_S)
        self.pipe.close()

    def cut_off(self, why: str) -> Iterator[Outcome]:
        """What it was running, as a run without a report."""
        if self.running is not None:
            yield replace(self.running, note=f"{why} {time.time() - self.since:.0f} s after the run began")


class Pool:
    """`jobs` processes, each of which is replaced when it dies or hangs, as long as there is time."""

    def __init__(
        self,
        plan: Plan,
        kinds: Sequence[str],
        jobs: int,
        budget: Budget,
        work: Work = work,
        longest_run: float = 120.0,
    ) -> None:
        """`longest_run`: seconds after which a run counts as hung, even if there is time left."""
        self._plan, self._kinds, self._jobs, self._budget = plan, kinds, jobs, budget
        self._work, self._longest_run = work, longest_run
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["confusion_table.running"])
        self._workers: list[_Worker] = []
        self._leaving: list[_Worker] = []
        self._scenes = self._started = 0

    def outcomes(self) -> Iterator[Outcome]:
        """Outcomes as they come, scenes taking turns between kinds; leaves no process behind."""
        with (
            tempfile.TemporaryDirectory(prefix="confusion-", ignore_cleanup_errors=True) as top,
            _import_path(),
        ):
            try:
                for _ in range(self._jobs):
                    self._start(Path(top))
                while self._workers:
                    yield from self._turn(Path(top))
            finally:
                last = time.monotonic() + (0 if self._workers else _LAST_WAIT_S)
                for worker in self._leaving:
                    worker.process.join(max(0.0, last - time.monotonic()))
                for worker in (*self._workers, *self._leaving):
                    worker.kill()

    def _start(self, top: Path) -> None:
        ours, theirs = self._context.Pipe()
        folder = str(top / f"w{self._started}")
        process = self._context.Process(target=self._work, args=(self._plan, folder, theirs))
        process.start()
        theirs.close()
        self._started += 1
        self._workers.append(_Worker(process, ours))

    def _turn(self, top: Path) -> Iterator[Outcome]:
        ready = connection.wait([worker.pipe for worker in self._workers], timeout=0.5)
        now, last = time.time(), self._budget.deadline + self._budget.grace
        for worker in tuple(self._workers):
            why = ""
            if worker.pipe in ready:
                try:
                    yield from self._answer(worker)
                except (EOFError, OSError):
                    worker.process.join(_LAST_WAIT_S)
                    why = f"its process ended with {worker.process.exitcode}"
            elif now > last or (worker.running is not None and now > worker.since + self._longest_run):
                why = "killed"
            if why:
                yield from worker.cut_off(why)
                self._workers.remove(worker)
                worker.kill()
                if now < self._budget.deadline and self._scenes < self._budget.scenes:
                    self._start(top)

    def _answer(self, worker: _Worker) -> Iterator[Outcome]:
        message = worker.pipe.recv()
        if message is not None:
            one = worker.took(message)
            yield from () if one is None else (one,)
            return
        task = self._next_task()
        worker.pipe.send(task)
        if task is None:
            self._workers.remove(worker)
            self._leaving.append(worker)

    def _next_task(self) -> Task | None:
        number = self._scenes
        if number >= self._budget.scenes or time.time() >= self._budget.deadline:
            return None
        self._scenes += 1
        kinds = self._kinds
        return Task(kinds[number % len(kinds)], number // len(kinds), self._budget.deadline)


@contextlib.contextmanager
def _import_path() -> Iterator[None]:
    """Lets the fork server import what this process imports: it starts with nothing but the environment."""
    before = os.environ.get("PYTHONPATH")
    here = Path(__file__).parents[1]
    paths = [str(here), str(here.parent), *([before] if before else [])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    try:
        yield
    finally:
        os.environ.pop("PYTHONPATH")
        os.environ |= {"PYTHONPATH": before} if before else {}
