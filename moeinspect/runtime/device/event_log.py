"""Collects what ran where and when."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from moeinspect.runtime.records import Event


class EventLog:
    """Thread-safe list of intervals of one worker.

    Times are `time.monotonic`, which is one clock for all processes of a machine.
    """

    def __init__(self, worker: int) -> None:
        self._worker = worker
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._events: list[Event] = []

    @contextmanager
    def interval(self, lane: str, kind: str, step: int) -> Iterator[None]:
        """Records the time that the body takes."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.add(lane, kind, step, start, time.monotonic())

    def add(self, lane: str, kind: str, step: int, start: float, end: float) -> None:
        """Records one interval."""
        event = Event(self._worker, self._pid, lane, step, kind, start, end)
        with self._lock:
            self._events.append(event)

    def drain(self) -> list[Event]:
        """The intervals since the last call."""
        with self._lock:
            events, self._events = self._events, []
        return events
