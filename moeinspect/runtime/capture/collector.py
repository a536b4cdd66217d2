"""Gathers a request's rows from the host buffer when it ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from moeinspect.runtime.capture.capturer import RoutedExpertsCapturer
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

    def __len__(self) -> int:
        return len(self.expert_ids)


class RowCollector:
    """Reads the capturer's host buffer by KV slot, and keeps beside it which step wrote a slot's KV.

    That provenance comes from the scheduler's own record of what it ran, not from the host buffer, which
    keeps no mark of what was written: a row that was never stored still looks like any other.
    """

    def __init__(self, capturer: RoutedExpertsCapturer, num_slots: int, worker: int) -> None:
        self._capturer = capturer
        self._worker = worker
        self._step = np.full(num_slots, NEVER, dtype=np.int32)
        self._origin = np.zeros(num_slots, dtype=np.uint8)

    def note_allocated(self, request: Request) -> None:
        """Forgets what a former owner of the request's slots computed there."""
        self._step[request.slots] = NEVER
        self._origin[request.slots] = 0

    def note_computed(self, request: Request, start: int, count: int, mode: ForwardMode, step: int) -> None:
        """Positions [start, start + count) of `request` were computed by this step."""
        slots = request.slots[start : start + count]
        self._step[slots] = step
        self._origin[slots] = ROW_ORIGINS.index(mode.value)

    def collect(self, request: Request, start: int, end: int) -> CollectedRows:
        """The rows of positions [start, end), whatever stands under their slots."""
        slots = request.slots[start:end]
        ids, *values = (tensor.numpy() for tensor in self._capturer.rows_of(torch.from_numpy(slots)))
        if ids.dtype == np.int16:
            ids = ids.view(np.uint16)
        shape = self._capturer.shape
        return CollectedRows(
            start=start,
            expert_ids=ids,
            origin=self._origin[slots],
            worker=np.full(len(slots), self._worker, dtype=np.uint16),
            step=self._step[slots],
            slot=slots.astype(np.int32),
            weights=values.pop(0) if shape.with_weights else None,
            margin=values.pop(0) if shape.with_margins else None,
        )
