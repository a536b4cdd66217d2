"""Where the processes of a run meet for `torch.distributed`; needed until all of them have met."""

from __future__ import annotations

import shutil
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import torch.distributed as dist

from moeinspect.runtime.parallel.links import CONNECT_TIMEOUT_S, Store, file_store, prefix_store

_TCP = "tcp://"


class Rendezvous(Protocol):
    """A place to meet."""

    @property
    def address(self) -> str:
        """What `open_rendezvous` takes, in any process of the run."""
        ...

    def close(self) -> None:
        """Nobody meets here any more."""
        ...


class FileRendezvous:
    """A file in a folder of its own, for processes of one machine."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="moeinspect-gloo-")

    @property
    def address(self) -> str:
        """Its path."""
        return str(Path(self._folder) / "store")

    def close(self) -> None:
        """Removes it."""
        shutil.rmtree(self._folder, ignore_errors=True)


class TcpRendezvous:
    """A store that somebody else serves."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port

    @property
    def address(self) -> str:
        """Its URL."""
        return f"{_TCP}{self._host}:{self._port}"

    def close(self) -> None:
        """Leaves it where it is."""


def open_rendezvous(address: str) -> Store:
    """The store of a rendezvous.

    Raises:
        RuntimeError: nobody serves it.
    """
    if not address.startswith(_TCP):
        return file_store(address)
    host, _, port = address.removeprefix(_TCP).rpartition(":")
    timeout = timedelta(seconds=CONNECT_TIMEOUT_S)
    store = dist.TCPStore(host, int(port), is_master=False, timeout=timeout)  # type: ignore[attr-defined]
    return prefix_store("moeinspect", store)
