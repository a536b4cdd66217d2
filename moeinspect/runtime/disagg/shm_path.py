"""KV by shared memory: the prefill worker writes straight into the decode worker's cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from moeinspect.runtime.device.stream import Device, StreamEvent
from moeinspect.runtime.memory.kv_cache import KVCache


class ShmSendPath:
    """Copies from this worker's caches into those of decode workers, which lie in shared memory."""

    announces_first = False

    def __init__(
        self,
        sources: Sequence[KVCache],
        destinations: Mapping[int, Sequence[KVCache]],
        device: Device,
        wake: Callable[[], None],
    ) -> None:
        self._sources = sources
        self._destinations = destinations
        self._device = device
        self._wake = wake
        self._count = 0

    def send(
        self, decode: int, from_slots: torch.Tensor, to_slots: torch.Tensor, transfer: int
    ) -> StreamEvent:
        """See `SendPath.send`; on the transfer stream, since a copy waits for nobody."""
        destinations = self._destinations[decode]

        def copy() -> None:
            for source, destination in zip(self._sources, destinations, strict=True):
                destination.data[:, :, to_slots] = source.data[:, :, from_slots]

        stream = self._device.transfer
        stream.submit(copy, kind="kv-transfer", step=self._count)
        self._count += 1
        done = stream.record()
        stream.notify(self._wake)
        return done


class ShmReceivePath:
    """The prefill worker has stored the KV before it says so."""

    def receive(self, prefill: int, slots: torch.Tensor, transfer: int) -> StreamEvent | None:
        """See `ReceivePath.receive`: there is nothing left to do."""
        return None
