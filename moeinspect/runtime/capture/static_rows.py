"""Decode rows that stay in the graphs' static buffer until their request ends (fault `graph-static-rows`).

A replayed graph writes its choices to the same memory in every step. Whoever keeps a reference to it in
place of a copy sees, when the request ends, what the last step wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from moeinspect.runtime.capture.capturer import CaptureBuffer, CaptureShape, TopkCaptureOutput

_STORED = -1


class LateHostBuffer(CaptureBuffer):
    """A host buffer that reads a request's decode rows from the static buffer once, when they are asked for.

    `wait` lets the step in flight end first, so that a row is never read in the middle of a replay.
    """

    def __init__(self, shape: CaptureShape, static: CaptureBuffer, wait: Callable[[], None]) -> None:
        super().__init__(shape, shape.num_slots)
        self._static = static
        self._wait = wait
        self._static_row = torch.full((shape.num_slots,), _STORED)

    def defer(self, slots: torch.Tensor) -> None:
        """The rows of `slots` [n] are the first n of the static buffer; nothing is copied."""
        self._static_row[slots] = torch.arange(slots.shape[0])

    def store(self, slots: torch.Tensor, rows: Sequence[torch.Tensor]) -> None:
        """Stores rows that were copied in time."""
        super().store(slots, rows)
        self._static_row[slots] = _STORED

    def move(self, from_rows: torch.Tensor, to_rows: torch.Tensor) -> None:
        """Moves rows, and what is known of those that were never copied."""
        super().move(from_rows, to_rows)
        self._static_row[to_rows] = self._static_row[from_rows]

    def rows_of(self, slots: torch.Tensor) -> list[torch.Tensor]:
        """The rows of one request's slots, in position order."""
        due = slots[self._static_row[slots] != _STORED]
        if due.shape[0]:
            self._wait()
            row = self._static_row[due[-1]]
            self.store(due, [tensor[row] for tensor in self._static.tensors()])
        return super().rows_of(slots)


class StaticRows(TopkCaptureOutput):
    """In place of a copy of a replay's rows: the promise that they stand in the static buffer."""

    def __init__(self, host: LateHostBuffer, slots: torch.Tensor) -> None:
        super().__init__(host, slots.clone(), [])
        self._late_host = host

    def _store(self) -> None:
        self._late_host.defer(self._slots)
