"""How the worker processes of a run are obtained and connected."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Protocol

from moeinspect.runtime.processes.channel import Channels
from moeinspect.runtime.processes.rendezvous import Rendezvous
from moeinspect.runtime.processes.worker_args import WorkerArgs

MakeArgs = Callable[[int, Channels], WorkerArgs]
"""What the worker of this index is started with, given its connections."""


class ProcessHandle(Protocol):
    """A process that was obtained."""

    ends_all: bool
    """Whether somebody else ends the whole run, the main process included, when this one ends."""

    @property
    def where(self) -> str:
        """How to find it, such as `pid 123`."""
        ...

    def death(self) -> str | None:
        """How it died, such as `was killed by signal 9`; None if it runs or ended well."""
        ...

    def end(self, timeout_s: float) -> None:
        """Waits for its end, and kills it if that takes longer."""
        ...


@dataclass(slots=True)
class WorkerProcess:
    """A worker process as the main process of its run sees it."""

    index: int
    name: str
    handle: ProcessHandle
    connection: Connection
    heartbeat: Connection


class Launcher(Protocol):
    """A way to obtain and connect worker processes."""

    def rendezvous(self) -> Rendezvous:
        """A new place where the workers can meet for `torch.distributed`."""
        ...

    def launch(
        self, names: Sequence[str], links: Sequence[tuple[int, int]], make_args: MakeArgs
    ) -> Iterator[WorkerProcess]:
        """Yields the worker of each name as it runs; between the workers of a link there is a connection.

        Raises:
            EngineError: a worker could not be started.
        """
        ...
