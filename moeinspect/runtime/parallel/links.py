"""How processes of a run reach each other with `torch.distributed`, and what it means when one is gone.

Process groups are made here as objects of their own, never as the process-wide default group: a process
belongs to several, and several ranks may be threads of one process.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from moeinspect.errors import EngineError

LOOPBACK = "127.0.0.1"

CONNECT_TIMEOUT_S = 300
"""How long the processes may take to load before they have all met."""

LINK_TIMEOUT_S = 60
"""How long an exchange may take; a peer that died breaks its link at once."""

ProcessGroup = Any
"""A `dist.ProcessGroupGloo` or `dist.ProcessGroupNCCL`; torch's stubs know less of these than torch does."""

Store = Any
"""A `dist.Store`: where the members of a group find each other."""


class LinkError(EngineError):
    """The link to another process broke; `peer` is its name if it is known which one."""

    def __init__(self, peer: str | None, message: str) -> None:
        super().__init__(message)
        self.peer = peer


def file_store(path: str) -> Store:
    """The store in a file, for processes of one machine."""
    # A store that counts its users would write to its file again when they end.
    return dist.FileStore(path)  # type: ignore[attr-defined]


def prefixed(prefix: str, store: Store) -> Store:
    """A part of `store` with names of its own."""
    return dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]


def prefix_store(prefix: str, store: Store) -> Store:
    """A part of `store` whose names begin with `prefix`."""
    return dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]


def open_process_group(
    store: Store, rank: int, size: int, *, device: torch.device | None = None, host: str = LOOPBACK
) -> ProcessGroup:
    """Meets the other members: over NCCL for tensors on a GPU, else over gloo at the address `host`.

    Raises:
        RuntimeError: the others did not come in time.
        EngineError: this torch has no such backend.
    """
    if device is not None and device.type == "cuda":
        return _open_nccl(store, rank, size)
    if not dist.is_gloo_available():
        raise EngineError("this torch was built without gloo, by which processes exchange tensors")
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=host)]
    options._timeout = timedelta(seconds=CONNECT_TIMEOUT_S)
    return gloo(store, rank, size, options)


def _open_nccl(store: Store, rank: int, size: int) -> ProcessGroup:
    if not dist.is_nccl_available():
        raise EngineError("this torch was built without NCCL, by which GPUs exchange tensors")
    nccl: Any = dist.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = timedelta(seconds=CONNECT_TIMEOUT_S)
    return nccl(store, rank, size, options)


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    """The same memory as [n] uint8; gloo knows few dtypes."""
    return x.view(-1).view(torch.uint8)


def first_line(error: Exception) -> str:
    """What gloo says without the place in its source that says it."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return text.split("] ", 1)[-1].split(". This is typically", 1)[0]
