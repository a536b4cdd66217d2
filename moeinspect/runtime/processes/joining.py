"""What the processes that torchrun started say to each other until they are the workers of a run."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

import torch.distributed as dist

from moeinspect import __version__
from moeinspect.errors import EngineError
from moeinspect.runtime.parallel.links import Store, first_line
from moeinspect.runtime.processes.torchrun import TorchrunPlace
from moeinspect.runtime.processes.worker_args import WorkerArgs

JOIN_TIMEOUT_S = 300
"""How long the processes may take to start before they have all met."""

_MAIN = "moeinspect/main"
"""Key under which rank 0 tells where it listens."""

_CAME = "moeinspect/came"
"""Key under which the ranks are counted that know it."""

LEAVE_TIMEOUT_S = 20
"""How long rank 0 keeps up a store that it serves itself for ranks that have not come yet."""

_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class MainAddress:
    """Where rank 0 listens, and the key that all have to know. Without a host: at MASTER_ADDR."""

    host: str
    port: int
    key: bytes

    def publish(self, store: Store) -> None:
        """Lets the other ranks find it."""
        store.set(_MAIN, json.dumps([self.host, self.port, self.key.hex()]))

    @classmethod
    def find(cls, store: Store) -> MainAddress:
        """Waits until rank 0 has published it.

        Raises:
            EngineError: it did not do so in time.
        """
        try:
            host, port, key = json.loads(store.get(_MAIN))
        except RuntimeError as error:
            raise EngineError(f"rank 0 did not come: {first_line(error)}") from error
        store.add(_CAME, 1)
        return cls(host, port, bytes.fromhex(key))


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message on a connection: who has connected, and what for.

    `port` is where this process takes the connections of others, if any are to come.
    """

    rank: int
    purpose: Literal["main", "heartbeat", "peer"]
    pid: int = 0
    host_name: str = ""
    port: int = 0
    version: str = __version__


@dataclass(frozen=True, slots=True)
class Assignment:
    """Rank 0 to another rank: be this worker. `args` lack their channels.

    `host` is the address by which the others reach this process, `connect` says where peers listen that it
    is to connect to, and `accept` which peers will connect to it.
    """

    args: WorkerArgs
    host: str
    connect: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    accept: frozenset[int] = frozenset()


def await_all(store: Store, place: TorchrunPlace) -> None:
    """Waits, not for long, until every other rank knows where rank 0 listened."""
    deadline = time.monotonic() + LEAVE_TIMEOUT_S
    while store.add(_CAME, 0) < place.world_size - 1 and time.monotonic() < deadline:
        time.sleep(_LOOK_S)


def open_store(place: TorchrunPlace) -> Store:
    """The store at which the processes of a torchrun meet.

    Raises:
        EngineError: nobody serves it.
    """
    try:
        # Unlike torch's own rendezvous this does not wait for the other ranks: what is to be refused is
        # refused at once.
        return dist.TCPStore(  # type: ignore[attr-defined]
            place.master_host,
            place.master_port,
            is_master=place.rank == 0 and not place.has_agent,
            timeout=timedelta(seconds=JOIN_TIMEOUT_S),
            wait_for_workers=False,
        )
    except (RuntimeError, ValueError) as error:
        where = f"{place.master_host}:{place.master_port}"
        raise EngineError(
            f"rank {place.rank} cannot reach the store of torchrun at {where}: {first_line(error)}",
            "check MASTER_ADDR and MASTER_PORT",
        ) from error
