"""The events of a run as lanes over time: does the host work while the device computes?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.workers import worker_name
from moeinspect.printable import printable
from moeinspect.report.words import percent
from moeinspect.trace.schema import Events, Lane, Trace

DEFAULT_WIDTH = 100

_LANES = (Lane.HOST, Lane.COMPUTE, Lane.COPY, Lane.TRANSFER)
_COLORS = {Lane.HOST: "33", Lane.COMPUTE: "32", Lane.COPY: "36", Lane.TRANSFER: "35"}
_LETTERS = {Lane.HOST: "H", Lane.COMPUTE: "C", Lane.COPY: "P", Lane.TRANSFER: "T"}
_BLOCKS = "·▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Overlap:
    """How much of a worker's compute time its host worked as well; times in seconds.

    `steps` counts the worker's steps with compute, `steps_overlapped` those during whose compute the host
    was at work.
    """

    compute: float
    together: float
    steps: int
    steps_overlapped: int

    @property
    def share(self) -> float | None:
        """Share of compute time from 0 to 1; None without compute time."""
        return self.together / self.compute if self.compute > 0 else None


def render_timeline(trace: Trace, *, width: int | None, color: bool) -> str:
    """A lane per worker and kind of work, drawn over the time of the run, with a legend; ends in a newline.

    `width` is the number of columns of the terminal that shows it, None if nothing does: then the lanes
    are plain ASCII. A trace without events gives one line that says so.
    """
    events = trace.events
    if events is None or not len(events):
        return "timeline: the trace holds no events\n"
    start, end = float(events.start.min()), float(events.end.max())
    drawn = _Canvas(start, max(end, start + 1e-9), width, color)
    lines = [drawn.ruler()]
    for worker in np.unique(events.worker).tolist():
        lines += drawn.worker(events, int(worker), worker_name(trace, int(worker)))
    lines.append(drawn.legend())
    workers = np.unique(events.worker)
    hosts = np.unique(events.worker[events.lane == Lane.HOST])
    scheduling = hosts if len(hosts) else workers
    for worker in scheduling.tolist():
        lines.append(_overlap_line(events, int(worker), worker_name(trace, int(worker))))
    if len(scheduling) < len(workers):
        lines.append(
            f"no host of their own, since leaders schedule for them: {len(workers) - len(scheduling)}"
        )
    if width is not None:
        lines.append("")  # what follows on the terminal is something else
    return "\n".join(lines) + "\n"


def host_overlap(events: Events, worker: int) -> Overlap:
    """Compute time of one worker during which its host was at work, too."""
    compute = _union(events, worker, Lane.COMPUTE)
    host = _union(events, worker, Lane.HOST)
    own = (events.worker == worker) & (events.lane == Lane.COMPUTE)
    forwards = np.stack([events.start[own], events.end[own]], axis=1)
    overlapped = np.diff(_covered_before(host, forwards.reshape(-1)).reshape(-1, 2), axis=1)[:, 0] > 0
    return Overlap(
        compute=float((compute[:, 1] - compute[:, 0]).sum()),
        together=_shared(compute, host),
        steps=len(np.unique(events.step[own])),
        steps_overlapped=len(np.unique(events.step[own][overlapped])),
    )


class _Canvas:
    """Draws lanes of one time span to the same columns."""

    def __init__(self, start: float, end: float, width: int | None, color: bool) -> None:
        self._start, self._end = start, end
        self._ascii = width is None
        self._color = color
        self._label_width = 10
        self._columns = max(20, (DEFAULT_WIDTH if width is None else width) - self._label_width - 2)

    def ruler(self) -> str:
        """The time span, over the lanes."""
        left, right = "0 ms", f"{1000 * (self._end - self._start):.0f} ms"
        return " " * (self._label_width + 2) + left + right.rjust(self._columns - len(left))

    def worker(self, events: Events, worker: int, name: str) -> list[str]:
        """The worker's name and its lanes; a lane without events is left out."""
        lines = [printable(name)]
        for lane in _LANES:
            own = (events.worker == worker) & (events.lane == lane)
            if own.any():
                label = f"  {lane.name.lower()}".ljust(self._label_width)
                lines.append(f"{label}  {self._lane(lane, events.start[own], events.end[own])}")
        return lines

    def legend(self) -> str:
        """What the marks of the lanes mean."""
        step = f"{1000 * (self._end - self._start) / self._columns:.2f} ms"
        if self._ascii:
            return f"one column is {step}: . idle, small letter busy for a part of it, capital for most of it"
        return f"one column is {step}: {_BLOCKS[0]} idle, {_BLOCKS[1]} to {_BLOCKS[-1]} how much of it busy"

    def _lane(self, lane: Lane, starts: NDArray[np.float64], ends: NDArray[np.float64]) -> str:
        busy = self._busy(starts, ends)
        if self._ascii:
            full = _LETTERS[lane]
            return "".join(full if b >= 0.75 else full.lower() if b > 0 else "." for b in busy)
        levels = np.where(busy > 0, np.clip(np.ceil(busy * 8), 1, 8), 0).astype(int)
        drawn = "".join(_BLOCKS[level] for level in levels)
        return f"\x1b[{_COLORS[lane]}m{drawn}\x1b[0m" if self._color else drawn

    def _busy(self, starts: NDArray[np.float64], ends: NDArray[np.float64]) -> NDArray[np.float64]:
        """Share of each column's time that the (merged) intervals cover [columns]."""
        merged = _merged(np.stack([starts, ends], axis=1))
        edges = np.linspace(self._start, self._end, self._columns + 1)
        before = _covered_before(merged, edges)
        return np.asarray(np.clip(np.diff(before) / np.diff(edges), 0.0, 1.0))


def _overlap_line(events: Events, worker: int, name: str) -> str:
    overlap = host_overlap(events, worker)
    if overlap.share is None:
        return printable(f"{name}: no compute")
    return printable(
        f"{name}: in {overlap.steps_overlapped} of {overlap.steps} steps the host worked while the device "
        f"computed, during {percent(overlap.share)} of {1000 * overlap.compute:.0f} ms"
    )


def _union(events: Events, worker: int, lane: Lane) -> NDArray[np.float64]:
    own = (events.worker == worker) & (events.lane == lane)
    return _merged(np.stack([events.start[own], events.end[own]], axis=1))


def _merged(intervals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Disjoint intervals [m, 2] in order that cover the same time as `intervals` [n, 2]."""
    if not len(intervals):
        return intervals
    intervals = intervals[np.argsort(intervals[:, 0], kind="stable")]
    reach = np.maximum.accumulate(intervals[:, 1])
    new = np.append(True, intervals[1:, 0] > reach[:-1])
    last = np.append(np.flatnonzero(new)[1:] - 1, len(intervals) - 1)
    return np.stack([intervals[new, 0], reach[last]], axis=1)


def _covered_before(merged: NDArray[np.float64], times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Time that disjoint intervals [m, 2] cover before each of `times` [n]."""
    if not len(merged):
        return np.zeros(len(times))
    lengths = merged[:, 1] - merged[:, 0]
    done = np.concatenate([[0.0], np.cumsum(lengths)])
    place = np.searchsorted(merged[:, 0], times, side="right")
    current = np.maximum(place - 1, 0)
    inside = np.clip(times - merged[current, 0], 0.0, lengths[current])
    return np.asarray(np.where(place > 0, done[current] + inside, 0.0))


def _shared(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Time that two sets of disjoint intervals have in common."""
    if not len(first) or not len(second):
        return 0.0
    covered = _covered_before(second, first.reshape(-1)).reshape(-1, 2)
    return float((covered[:, 1] - covered[:, 0]).sum())
