"""Signs of life of worker processes, and noticing that one gives none.

A process that died closes its connections; one that is stopped, or stuck where Python cannot run, does
not. So each worker has a thread that sends small beats over a connection of its own: neither a full pipe
nor a long forward delays them.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection

from moeinspect.errors import UsageError

BEAT_S = 0.5
"""Time between two beats of a worker."""

TIMEOUT_S = 30.0
"""How long a worker may be silent before the run gives it up."""

TIMEOUT_VARIABLE = "MOEINSPECT_WORKER_TIMEOUT"
"""Environment variable with another number of seconds than `TIMEOUT_S`."""

MIN_TIMEOUT_S = 2.0
"""A few beats: a busy machine is late with one now and then."""

ORPHAN_GRACE_S = 2.0
"""How long a worker may take to end by itself once its main process has gone."""


def worker_timeout(environ: Mapping[str, str] | None = None) -> float:
    """Seconds that a worker may be silent.

    Raises:
        UsageError: the environment variable holds no such number.
    """
    text = (os.environ if environ is None else environ).get(TIMEOUT_VARIABLE)
    if not text:
        return TIMEOUT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not MIN_TIMEOUT_S <= seconds < math.inf:
        raise UsageError(
            f"{TIMEOUT_VARIABLE}={text}: not a number of seconds from {MIN_TIMEOUT_S:g} on",
            f"leave it unset for {TIMEOUT_S:g}",
        )
    return seconds


@contextmanager
def beating(connection: Connection) -> Iterator[None]:
    """Sends beats while the block runs; ends this process soon after the other end has gone.

    The block may be waiting for something that will never come then.
    """
    is_over = threading.Event()

    def beat() -> None:
        try:
            while not is_over.is_set():
                connection.send_bytes(b".")
                is_over.wait(BEAT_S)
        except OSError:
            if not is_over.wait(ORPHAN_GRACE_S):
                os._exit(1)

    thread = threading.Thread(target=beat, name="moeinspect-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()


class Silence:
    """For how long nothing has been heard of each worker.

    Only time counts in which somebody listened: what passed between two calls of `listened` counts as one
    wait at most. So neither a main process that was stopped together with its workers (Ctrl-Z) nor a slow
    disk makes a worker look silent.
    """

    def __init__(
        self, workers: Iterable[int], longest_wait_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = dict.fromkeys(workers, 0.0)
        self._longest_wait_s = longest_wait_s
        self._clock = clock
        self._last = clock()

    def listened(self, heard: Iterable[int]) -> None:
        """These workers were heard in a wait for all of them that has just ended."""
        now = self._clock()
        passed, self._last = min(now - self._last, self._longest_wait_s), now
        for worker in self._seconds:
            self._seconds[worker] += passed
        for worker in heard:
            if worker in self._seconds:
                self._seconds[worker] = 0.0

    def forget(self, worker: int) -> None:
        """Nothing more is expected of this worker."""
        self._seconds.pop(worker, None)

    def longest(self) -> tuple[int, float] | None:
        """The worker that has been silent for the longest time, and the time in seconds."""
        return max(self._seconds.items(), key=lambda item: item[1], default=None)

    def of(self, worker: int) -> float:
        """Seconds of silence of this worker."""
        return self._seconds.get(worker, 0.0)
