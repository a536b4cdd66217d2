"""KV by `torch.distributed` gloo: point to point between two workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from moeinspect.errors import EngineError
from moeinspect.runtime.device.stream import Device, DeviceStream, StreamEvent
from moeinspect.runtime.memory.kv_cache import KVCache
from moeinspect.runtime.parallel.links import (
    LINK_TIMEOUT_S,
    LOOPBACK,
    LinkError,
    as_bytes,
    first_line,
    open_process_group,
)
from moeinspect.runtime.processes.rendezvous import open_rendezvous


class GlooGroup:
    """The workers of a run, ranked by worker index. Threads may use it at the same time."""

    def __init__(self, rendezvous: str, rank: int, names: Sequence[str], host: str = LOOPBACK) -> None:
        """Meets all the others; they reach this one at `host`.

        Raises:
            EngineError: this torch has no gloo, or the others did not come.
        """
        if not dist.is_gloo_available():
            raise EngineError("this torch was built without gloo", "use --transfer shm")
        try:
            self._group = open_process_group(open_rendezvous(rendezvous), rank, len(names), host=host)
        except RuntimeError as error:
            raise EngineError(f"the workers could not meet over gloo: {first_line(error)}") from error
        self._names = names

    def send(self, data: torch.Tensor, to: int, tag: int) -> None:
        """Sends a contiguous tensor; returns when the receiver has taken it.

        Raises:
            LinkError: the receiver has gone, or did not take it in time.
        """
        self._wait(self._group.send([as_bytes(data)], to, tag), to)

    def receive(self, data: torch.Tensor, source: int, tag: int) -> None:
        """Fills a contiguous tensor with what `source` sends under `tag`.

        Raises:
            LinkError: the sender has gone, or did not send in time.
        """
        self._wait(self._group.recv([as_bytes(data)], source, tag), source)

    def _wait(self, work: dist.Work, peer: int) -> None:
        try:
            work.wait(timedelta(seconds=LINK_TIMEOUT_S))
        except RuntimeError as error:
            raise LinkError(
                self._names[peer],
                f"the gloo link to the {self._names[peer]} worker broke: {first_line(error)}",
            ) from error


class _PairStreams:
    """A transfer stream for each peer: no pair waits for another one's transfers."""

    def __init__(self, device: Device, wake: Callable[[], None]) -> None:
        self._device = device
        self._wake = wake
        self._streams: dict[int, DeviceStream] = {}

    def run(self, peer: int, work: Callable[[], None], *, kind: str, step: int) -> StreamEvent:
        """Enqueues `work` behind the pair's earlier transfers."""
        if peer not in self._streams:
            self._streams[peer] = self._device.new_stream("transfer")
        stream = self._streams[peer]
        stream.submit(work, kind=kind, step=step)
        done = stream.record()
        stream.notify(self._wake)
        return done


class _GlooPath:
    """One side of the links to all peers."""

    def __init__(
        self, group: GlooGroup, caches: Sequence[KVCache], device: Device, wake: Callable[[], None]
    ) -> None:
        self._group = group
        self._caches = caches
        self._streams = _PairStreams(device, wake)

    def _tag(self, transfer: int, cache: int) -> int:
        """What tells the messages of a pair apart: each transfer has one for each KV cache."""
        return transfer * len(self._caches) + cache


class GlooSendPath(_GlooPath):
    """Gathers a prompt's KV into one buffer for each model and sends it."""

    announces_first = True

    def send(
        self, decode: int, from_slots: torch.Tensor, to_slots: torch.Tensor, transfer: int
    ) -> StreamEvent:
        """See `SendPath.send`; the receiver knows its slots itself."""

        def work() -> None:
            for i, cache in enumerate(self._caches):
                data = cache.data.index_select(2, from_slots)
                self._group.send(data, decode, self._tag(transfer, i))

        return self._streams.run(decode, work, kind="kv-send", step=transfer)


class GlooReceivePath(_GlooPath):
    """Receives a prompt's KV into a buffer and stores it under the slots that were allocated for it."""

    def receive(self, prefill: int, slots: torch.Tensor, transfer: int) -> StreamEvent | None:
        """See `ReceivePath.receive`."""

        def work() -> None:
            for i, cache in enumerate(self._caches):
                layers, two, _, heads, head_dim = cache.shape.dims
                data = torch.empty((layers, two, len(slots), heads, head_dim), dtype=cache.shape.dtype)
                self._group.receive(data, prefill, self._tag(transfer, i))
                cache.data[:, :, slots] = data

        return self._streams.run(prefill, work, kind="kv-receive", step=transfer)
