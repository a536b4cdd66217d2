"""KV in host memory: where evicted prefixes wait for being used again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from moeinspect.runtime.capture.collector import RowCollector, SavedRows
from moeinspect.runtime.device.stream import Device
from moeinspect.runtime.memory.kv_cache import KVCache
from moeinspect.runtime.memory.page_allocator import PAGE_SIZE, PageAllocator
from moeinspect.runtime.parallel.commands import CopyToDevice, CopyToHost, DropHostBuffer, MakeHostBuffer
from moeinspect.runtime.parallel.team import ALONE, Team


class HostBuffers:
    """Host memory for the KV of some slots: tensors [layers, 2, n, kv_heads, head_dim], one per KV cache.

    Each follower of this rank has its own under the same `number`.
    """

    def __init__(self, number: int, caches: Sequence[KVCache], num_slots: int) -> None:
        self.number = number
        self.tensors = [
            torch.zeros(*shape[:2], num_slots, *shape[3:], dtype=cache.data.dtype)
            for cache in caches
            for shape in [cache.data.shape]
        ]


class KVMover:
    """Moves KV between KV slots and host memory on the transfer stream, in order with the forwards.

    The host buffer of captured rows is by KV slot, so whoever moves KV has to move the rows as well. `team`
    are the other ranks, which have a share of the first KV cache's.
    """

    def __init__(self, kv_caches: Sequence[KVCache], device: Device, team: Team = ALONE) -> None:
        self._kv_caches = list(kv_caches)
        self._device = device
        self._team = team
        self._count = 0
        self._num_buffers = 0

    def to_host(self, slots: NDArray[np.int64], buffers: HostBuffers, places: NDArray[np.int64]) -> None:
        """KV of `slots` [n] into `places` [n] of host memory."""
        slots, places = slots.copy(), places.copy()

        def copy() -> None:
            self._team.tell(CopyToHost(buffers.number, slots, places))
            taken, given = torch.from_numpy(slots), torch.from_numpy(places)
            for cache, buffer in zip(self._kv_caches, buffers.tensors, strict=True):
                buffer[:, :, given] = cache.data[:, :, taken]

        self._between_forwards(copy, "kv-backup")

    def to_device(self, buffers: HostBuffers, places: NDArray[np.int64], slots: NDArray[np.int64]) -> None:
        """The way back, into other `slots` [n] as a rule."""
        slots, places = slots.copy(), places.copy()

        def copy() -> None:
            self._team.tell(CopyToDevice(buffers.number, places, slots))
            taken, given = torch.from_numpy(places), torch.from_numpy(slots)
            for cache, buffer in zip(self._kv_caches, buffers.tensors, strict=True):
                cache.data[:, :, given] = buffer[:, :, taken]

        self._between_forwards(copy, "kv-restore")

    def make_buffers(self, num_slots: int) -> HostBuffers:
        """Host memory for the KV of `num_slots` slots, here and on the followers."""
        self._num_buffers += 1
        self._team.tell(MakeHostBuffer(self._num_buffers, num_slots))
        return HostBuffers(self._num_buffers, self._kv_caches, num_slots)

    def drop_buffers(self, buffers: HostBuffers) -> None:
        """Frees the followers' share once what was enqueued with it has run."""
        number, device = buffers.number, self._device
        device.transfer.submit(lambda: self._team.tell(DropHostBuffer(number)), kind="kv-drop", step=0)

    def _between_forwards(self, copy: Callable[[], None], kind: str) -> None:
        device = self._device
        device.transfer.wait(device.compute.record())
        device.transfer.submit(copy, kind=kind, step=self._count)
        device.compute.wait(device.transfer.record())
        self._count += 1


class HostTier:
    """Pages of host memory for KV, with the captured rows that belong to it.

    Mirrors SGLang's hierarchical cache (`hiradix_cache.py`, write-back). With `moves_rows` False the rows
    stay behind when KV comes back to other slots (fault `stale-slot`, SGLang issues 26975 and 39027).
    """

    def __init__(
        self, num_slots: int, mover: KVMover, collector: RowCollector, *, moves_rows: bool = True
    ) -> None:
        self.num_slots = num_slots // PAGE_SIZE * PAGE_SIZE
        self._mover = mover
        self._collector = collector
        self._moves_rows = moves_rows
        self._allocator = PageAllocator(PAGE_SIZE + self.num_slots)
        self._kv = mover.make_buffers(PAGE_SIZE + self.num_slots)
        self._rows: dict[int, SavedRows] = {}

    def can_allocate(self, num_slots: int) -> bool:
        """Whether `back_up` of so many slots would succeed."""
        return self._allocator.can_allocate(num_slots)

    def back_up(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Copies KV and rows of `slots` [n], whole pages; returns the host slots [n]."""
        host_slots = self._allocator.allocate(len(slots))
        self._mover.to_host(slots, self._kv, host_slots)
        for page, host_page in zip(_pages(slots), _pages(host_slots), strict=True):
            self._rows[int(host_page[0])] = self._collector.save(page)
        return host_slots

    def load(self, host_slots: NDArray[np.int64], slots: NDArray[np.int64]) -> None:
        """Copies KV and rows of `host_slots` [n] into `slots` [n]; the host keeps its copy."""
        self._mover.to_device(self._kv, host_slots, slots)
        for page, host_page in zip(_pages(slots), _pages(host_slots), strict=True):
            self._collector.restore(page, self._rows[int(host_page[0])], with_rows=self._moves_rows)

    def free(self, host_slots: NDArray[np.int64]) -> None:
        """Gives host pages back."""
        for page in _pages(host_slots):
            del self._rows[int(page[0])]
        self._allocator.free(host_slots)

    def check_integrity(self, held: list[NDArray[np.int64]]) -> None:
        """Every host page is free or held by one node.

        Raises:
            RuntimeError: it is not.
        """
        self._allocator.check_integrity(held)


class KVBackup:
    """One request's KV and rows in host memory, for as long as it is preempted.

    Mirrors the decode side of SGLang's disaggregation, which cannot compute a prompt again and so offloads
    the KV of a retracted request (`disaggregation/decode.py`).
    """

    def __init__(self, mover: KVMover, collector: RowCollector, slots: NDArray[np.int64]) -> None:
        self._mover = mover
        self._collector = collector
        self._places = np.arange(len(slots))
        self._kv = mover.make_buffers(len(slots))
        mover.to_host(slots, self._kv, self._places)
        self._rows = collector.save(slots)

    def restore(self, slots: NDArray[np.int64], *, moves_rows: bool = True) -> None:
        """Copies everything into `slots`, of which there are at least as many as before."""
        given = slots[: len(self._places)]
        self._mover.to_device(self._kv, self._places, given)
        self._collector.restore(given, self._rows, with_rows=moves_rows)
        self.drop()

    def drop(self) -> None:
        """The copy is not needed any more."""
        self._mover.drop_buffers(self._kv)


def _pages(slots: NDArray[np.int64]) -> NDArray[np.int64]:
    return slots.reshape(-1, PAGE_SIZE)
