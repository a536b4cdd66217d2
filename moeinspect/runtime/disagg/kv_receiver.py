"""Waits for the KV of prompts that were computed elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from moeinspect.runtime.disagg.kv_sender import IsDone
from moeinspect.runtime.processes.messages import KVReady
from moeinspect.runtime.records import RequestKey


class ReceivePath(Protocol):
    """How KV gets into this worker's cache."""

    def receive(self, prefill: int, slots: torch.Tensor, transfer: int) -> IsDone | None:
        """Stores an announced transfer under `slots` [P]; None: it is there already.

        What comes back is done once the KV can be read. Transfers of one prefill worker come in the order in
        which they were announced.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class _Arrival:
    message: KVReady
    done: IsDone | None

    @property
    def is_done(self) -> bool:
        """Whether the KV can be read."""
        return self.done is None or self.done.query()


class KVReceiver:
    """Requests whose slots wait for KV.

    `together` hands out arrivals only when nothing is awaited, so that requests surely start, and may end,
    in one step (fault `batch-index-swap`).
    """

    def __init__(self, path: ReceivePath, *, together: bool = False) -> None:
        self._path = path
        self._together = together
        self._slots: dict[RequestKey, NDArray[np.int64]] = {}
        self._arrivals: list[_Arrival] = []

    def expect(self, key: RequestKey, slots: NDArray[np.int64]) -> None:
        """`slots` [P] were allocated for the prompt's positions."""
        self._slots[key] = slots

    def forget(self, key: RequestKey) -> None:
        """No KV will come for this request."""
        del self._slots[key]

    def announced(self, prefill: int, message: KVReady) -> None:
        """A prefill worker says that a request's KV is there or on its way."""
        slots = torch.from_numpy(self._slots.pop(message.key))
        self._arrivals.append(_Arrival(message, self._path.receive(prefill, slots, message.transfer)))

    def arrived(self) -> list[KVReady]:
        """Announcements whose KV can be read, since the last call."""
        if self._together and (self._slots or not all(arrival.is_done for arrival in self._arrivals)):
            return []
        done = [arrival for arrival in self._arrivals if arrival.is_done]
        self._arrivals = [arrival for arrival in self._arrivals if arrival not in done]
        return [arrival.message for arrival in done]
