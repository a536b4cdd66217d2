"""Stretches of rows that are wanted, in the order in which they are wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Readable(Protocol):
    """Rows that can be read by range."""

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows [start, stop)."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Stretches [start, stop) [n] of rows; none is empty, and none goes on where the one before it ends."""

    start: NDArray[np.int64]
    stop: NDArray[np.int64]

    @classmethod
    def whole(cls, rows: int) -> Runs:
        """All of `rows` rows."""
        return cls.of(np.zeros(1, np.int64), np.asarray([rows]))

    @classmethod
    def of(cls, start: NDArray[Any], count: NDArray[Any]) -> Runs:
        """Stretches of `count` [m] rows from `start` [m] on."""
        start, count = start.astype(np.int64), count.astype(np.int64)
        start, stop = start[count > 0], (start + count)[count > 0]
        begins = np.ones(len(start), dtype=bool)
        begins[1:] = start[1:] != stop[:-1]
        ends = np.append(np.flatnonzero(begins)[1:], len(start)) - 1
        return cls(start[begins], stop[ends] if len(start) else stop)

    def __len__(self) -> int:
        return int((self.stop - self.start).sum())

    def read(self, source: Readable) -> NDArray[Any]:
        """These rows of `source`, one stretch after another; not to be written to."""
        if len(self.start) == 1:
            return source.read(int(self.start[0]), int(self.stop[0]))
        parts = [source.read(a, b) for a, b in zip(self.start.tolist(), self.stop.tolist(), strict=True)]
        return np.concatenate(parts) if parts else source.read(0, 0)

    def places_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where these rows [m] stand among the rows that `read` gives, -1 for those that do not."""
        places = np.full(len(rows), -1, dtype=np.int64)
        if not len(self.start):
            return places
        order = np.argsort(self.start, kind="stable")
        run = order[np.maximum(0, np.searchsorted(self.start[order], rows, side="right") - 1)]
        inside = (rows >= self.start[run]) & (rows < self.stop[run])
        ends = np.cumsum(self.stop - self.start)
        before = ends - (self.stop - self.start)
        places[inside] = (before[run] + rows - self.start[run])[inside]
        return places
