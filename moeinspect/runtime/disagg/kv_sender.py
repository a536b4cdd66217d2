"""Moves the KV of finished prompts into the decode worker's slots."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from moeinspect.runtime.device.stream import Device, StreamEvent
from moeinspect.runtime.memory.kv_cache import KVCache
from moeinspect.runtime.scheduler.request import Request


@dataclass(slots=True)
class _Transfer:
    request: Request
    done: StreamEvent


class KVSender:
    """Copies each request's KV straight from this worker's cache into the decode worker's, once.

    The destination caches lie in shared memory. A copy starts when the prompt has been computed and the
    decode worker has said where to, whichever comes last, and runs on the transfer stream.
    """

    def __init__(
        self, sources: list[KVCache], destinations: list[KVCache], device: Device, wake: Callable[[], None]
    ) -> None:
        self._pairs = list(zip(sources, destinations, strict=True))
        self._device = device
        self._wake = wake
        self._slots: dict[str, NDArray[np.int64]] = {}
        self._prefilled: dict[str, Request] = {}
        self._transfers: deque[_Transfer] = deque()
        self._count = 0

    def destination_known(self, request_id: str, slots: NDArray[np.int64]) -> None:
        """The decode worker allocated `slots` [P] for the prompt's positions."""
        self._slots[request_id] = slots
        self._start_if_possible(request_id)

    def prefilled(self, request: Request) -> None:
        """Every prompt position of `request` has been computed and its step processed."""
        self._prefilled[request.prompt.id] = request
        self._start_if_possible(request.prompt.id)

    def completed(self) -> list[Request]:
        """Requests whose KV has arrived since the last call."""
        arrived: list[Request] = []
        # In order, as the stream runs them; a transfer behind one that is under way cannot be done.
        while self._transfers and self._transfers[0].done.query():
            arrived.append(self._transfers.popleft().request)
        return arrived

    def _start_if_possible(self, request_id: str) -> None:
        if request_id not in self._slots or request_id not in self._prefilled:
            return
        request = self._prefilled.pop(request_id)
        to_slots = torch.from_numpy(self._slots.pop(request_id))
        from_slots = torch.from_numpy(request.slots[: request.prompt_len].copy())

        def copy() -> None:
            for source, destination in self._pairs:
                destination.data[:, :, to_slots] = source.data[:, :, from_slots]

        stream = self._device.transfer
        stream.submit(copy, kind="kv-transfer", step=self._count)
        self._transfers.append(_Transfer(request, stream.record()))
        stream.submit(self._wake, kind="wake", step=self._count)
        self._count += 1
