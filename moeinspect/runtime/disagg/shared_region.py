"""Memory that two processes map, without a name that could outlive them."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any, Protocol

import torch


class _Handle(Protocol):
    def detach(self) -> int: ...


class SharedRegion:
    """An anonymous piece of shared memory; it is gone when the last process that holds it is.

    It can be an argument of a process that is being started; only its file descriptor travels.
    """

    def __init__(self, num_bytes: int, fd: int | None = None) -> None:
        self.num_bytes = num_bytes
        self._fd = _create(num_bytes) if fd is None else fd
        self._map: mmap.mmap | None = None

    def tensor(self) -> torch.Tensor:
        """The region as bytes [num_bytes] uint8; zeros at first, shared by all who hold the region."""
        if self._map is None:
            self._map = mmap.mmap(self._fd, self.num_bytes)
        return torch.frombuffer(self._map, dtype=torch.uint8)

    def close(self) -> None:
        """Gives up this process's handle; tensors made from the region stay valid."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _attach, (self.num_bytes, reduction.DupFd(self._fd))


def _attach(num_bytes: int, handle: _Handle) -> SharedRegion:
    return SharedRegion(num_bytes, handle.detach())


def _create(num_bytes: int) -> int:
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("moeinspect-kv", os.MFD_CLOEXEC)
    else:
        # No memfd outside Linux: a file that is unlinked at once is as nameless.
        with tempfile.TemporaryFile(prefix="moeinspect-kv") as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, num_bytes)
    return fd
