"""Gathers a request's rows from the host buffer when it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from moeinspect.runtime.capture.capturer import RoutedExpertsCapturer, get_global_experts_capturer
from moeinspect.runtime.capture.foreign_shape import as_shape
from moeinspect.runtime.forward_batch import ForwardMode
from moeinspect.runtime.records import ROW_ORIGINS
from moeinspect.runtime.scheduler.request import Request

NEVER = -1
"""Step of a slot in which this worker computed nothing for its present owner."""


@dataclass(slots=True)
class CollectedRows:
    """Rows of positions [start, start + n) of one request, with what the worker knows of them."""

    start: int
    expert_ids: NDArray[Any]
    origin: NDArray[np.uint8]
    worker: NDArray[np.uint16]
    step: NDArray[np.int32]
    slot: NDArray[np.int32]
    weights: NDArray[np.float32] | None = None
    margin: NDArray[np.float32] | None = None
    weight_version: NDArray[np.uint16] | None = None

    def __len__(self) -> int:
        return len(self.expert_ids)

    def between(self, start: int, end: int) -> CollectedRows:
        """Those of positions [start, end) that are here; `start` not before the first."""
        first, last = start - self.start, max(start, end) - self.start
        columns: dict[str, Any] = {name: getattr(self, name) for name in ROW_COLUMNS}
        cut: dict[str, Any] = {name: None if c is None else c[first:last] for name, c in columns.items()}
        return CollectedRows(start=start, **cut)


ROW_COLUMNS = tuple(column.name for column in fields(CollectedRows) if column.name != "start")
"""Names of the fields with an entry for each row."""


@dataclass(slots=True)
class SavedRows:
    """What stands under some KV slots, taken out so that it can follow the KV to other slots."""

    rows: list[torch.Tensor]
    step: NDArray[np.int32]
    origin: NDArray[np.uint8]


class RowCollector:
    """Reads the capturer's host buffer by KV slot, and keeps beside it which step wrote a slot's KV.

    That provenance comes from the scheduler's own record of what it ran, not from the host buffer, which
    keeps no mark of what was written: a row that was never stored still looks like any other.
    """

    def __init__(self, capturer: RoutedExpertsCapturer, num_slots: int, worker: int) -> None:
        self._shape = capturer.shape
        self._worker = worker
        self._step = np.full(num_slots, NEVER, dtype=np.int32)
        self._origin = np.zeros(num_slots, dtype=np.uint8)

    def note_allocated(self, slots: NDArray[np.int64]) -> None:
        """Forgets what a former owner of `slots` computed there; their rows stay, as upstream's do."""
        self._step[slots] = NEVER
        self._origin[slots] = 0

    def note_computed(self, request: Request, start: int, count: int, mode: ForwardMode, step: int) -> None:
        """Positions [start, start + count) of `request` were computed by this step."""
        slots = request.slots[start : start + count]
        self._step[slots] = step
        self._origin[slots] = ROW_ORIGINS.index(mode.value)

    def save(self, slots: NDArray[np.int64]) -> SavedRows:
        """Takes a copy of the rows under `slots` [n] and of what is known about them."""
        rows = self._capturer.rows_of(torch.from_numpy(slots))
        return SavedRows(rows, self._step[slots], self._origin[slots])

    def restore(self, slots: NDArray[np.int64], saved: SavedRows, *, with_rows: bool = True) -> None:
        """Puts saved rows under other `slots` [n]. Without `with_rows` they stay behind (`stale-slot`)."""
        self._step[slots], self._origin[slots] = saved.step, saved.origin
        if with_rows:
            self._capturer.put_rows(torch.from_numpy(slots), saved.rows)

    def collect(self, request: Request, start: int, end: int) -> CollectedRows:
        """The rows of positions [start, end), whatever stands under their slots.

        Positions below `cached_tokens` were never computed by the request: their origin is the prefix cache.
        """
        slots = request.slots[start:end]
        ids, *values = (tensor.numpy() for tensor in self._rows_of(torch.from_numpy(slots)))
        if ids.dtype == np.int16:
            ids = ids.view(np.uint16)
        shape = self._shape
        origin = self._origin[slots]
        origin[: max(0, request.cached_tokens - start)] = ROW_ORIGINS.index("prefix-cache")
        return CollectedRows(
            start=start,
            expert_ids=ids,
            origin=origin,
            worker=np.full(len(slots), self._worker, dtype=np.uint16),
            step=self._step[slots],
            slot=slots.astype(np.int32),
            weights=values.pop(0) if shape.with_weights else None,
            margin=values.pop(0) if shape.with_margins else None,
        )

    @property
    def _capturer(self) -> RoutedExpertsCapturer:
        """The capturer that the process has now."""
        capturer = get_global_experts_capturer()
        if capturer is None:
            raise RuntimeError("a target's process has a capturer")
        return capturer

    def _rows_of(self, slots: torch.Tensor) -> list[torch.Tensor]:
        """The rows of these slots, in the target's shape."""
        rows, shape = self._capturer.rows_of(slots), self._capturer.shape
        return rows if shape == self._shape else as_shape(rows, shape, self._shape)


def join_rows(parts: Sequence[CollectedRows]) -> CollectedRows:
    """Rows of one request that stand one after another; a column that a part lacks is left out."""
    columns: dict[str, Any] = {}
    for name in ROW_COLUMNS:
        present = [column for part in parts if (column := getattr(part, name)) is not None]
        columns[name] = np.concatenate(present) if len(present) == len(parts) else None
    return CollectedRows(start=parts[0].start, **columns)
