"""Worker processes that torchrun started: rank 0's part, which makes them the workers of its run."""

from __future__ import annotations

import ipaddress
import secrets
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from types import TracebackType

from moeinspect.errors import EngineError, WorkerLostError
from moeinspect.runtime.parallel.links import LOOPBACK
from moeinspect.runtime.processes.channel import Channels, hang_up
from moeinspect.runtime.processes.forked import ForkedProcesses
from moeinspect.runtime.processes.joining import (
    JOIN_TIMEOUT_S,
    Assignment,
    Hello,
    MainAddress,
    await_all,
    open_store,
)
from moeinspect.runtime.processes.launcher import MakeArgs, WorkerProcess
from moeinspect.runtime.processes.messages import Failed, Goodbye
from moeinspect.runtime.processes.rendezvous import TcpRendezvous
from moeinspect.runtime.processes.tcp import TcpListener, hosts_of
from moeinspect.runtime.processes.torchrun import TorchrunPlace

_LOOK_S = 0.5
"""How often rank 0 looks whether ranks that have come are still there, while it waits for others."""


class JoinedProcesses:
    """The other ranks of a torchrun, which wait for work from the moment that this exists until it closes.

    Worker 0 is forked here, so that it dies alone; worker n is rank n. For one run.
    """

    def __init__(self, place: TorchrunPlace) -> None:
        """Lets the other ranks come.

        Raises:
            EngineError: the ranks have no place to meet.
        """
        self.place = place
        self._closing = ExitStack()
        if place.world_size > 1:
            self._open(place)

    def _open(self, place: TorchrunPlace) -> None:
        host = "" if place.spans_hosts else LOOPBACK
        key = secrets.token_bytes(32)
        self._store = open_store(place)
        self._listener = TcpListener(host, key)
        self._closing.callback(self._listener.close)
        MainAddress(host, self._listener.port, key).publish(self._store)

    def __enter__(self) -> JoinedProcesses:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()
        serves = self.place.world_size > 1 and not self.place.has_agent
        if serves and kind is not KeyboardInterrupt:
            await_all(self._store, self.place)  # who comes later would look for the store in vain

    def rendezvous(self) -> TcpRendezvous:
        """See `Launcher.rendezvous`: the store of torchrun."""
        return TcpRendezvous(self.place.master_host, self.place.master_port)

    def launch(
        self, names: Sequence[str], links: Sequence[tuple[int, int]], make_args: MakeArgs
    ) -> Iterator[WorkerProcess]:
        """See `Launcher.launch`."""
        deadline = time.monotonic() + JOIN_TIMEOUT_S
        hellos, controls, heartbeats = self._await_ranks(deadline)
        hosts = _hosts(controls)
        for rank, control in controls.items():
            lower = [min(link) for link in links if max(link) == rank]
            higher = [max(link) for link in links if min(link) == rank]
            ports = {peer: self._listener.port if peer == 0 else hellos[peer].port for peer in lower}
            connect = {peer: (hosts[peer], port) for peer, port in ports.items()}
            args = make_args(rank, Channels.unconnected(hosts[rank]))
            control.send(Assignment(args, hosts[rank], connect, frozenset(higher)))
        peers = self._await_peers([max(link) for link in links if min(link) == 0], deadline, controls)
        yield ForkedProcesses().start(0, names[0], peers, make_args, hosts[0])
        for peer in peers.values():
            peer.close()
        for rank, control in controls.items():
            handle = JoinedProcess(hellos[rank], control)
            yield WorkerProcess(rank, names[rank], handle, control, heartbeats[rank])

    def _await_ranks(
        self, deadline: float
    ) -> tuple[dict[int, Hello], dict[int, Connection], dict[int, Connection]]:
        hellos: dict[int, Hello] = {}
        ends: dict[str, dict[int, Connection]] = {"main": {}, "heartbeat": {}}
        ranks = range(1, self.place.world_size)
        while not all(rank in of_purpose for rank in ranks for of_purpose in ends.values()):
            missing = [rank for rank in ranks if rank not in ends["heartbeat"]]
            hello, connection = self._accept(deadline, missing, ends["main"])
            ends[hello.purpose][hello.rank] = connection
            if hello.purpose == "main":
                hellos[hello.rank] = hello
        return hellos, {rank: ends["main"][rank] for rank in ranks}, ends["heartbeat"]

    def _await_peers(
        self, ranks: Sequence[int], deadline: float, controls: Mapping[int, Connection]
    ) -> dict[int, Connection]:
        peers: dict[int, Connection] = {}
        while len(peers) < len(ranks):
            hello, connection = self._accept(
                deadline, [rank for rank in ranks if rank not in peers], controls
            )
            peers[hello.rank] = connection
        return peers

    def _accept(
        self, deadline: float, missing: Sequence[int], controls: Mapping[int, Connection]
    ) -> tuple[Hello, Connection]:
        """The next connection of a rank; those of `controls` have come, and say nothing yet."""
        connection = None
        while connection is None:
            with suppress(TimeoutError):
                connection = self._listener.accept(min(deadline, time.monotonic() + _LOOK_S))
            for rank, control in controls.items():
                if control.poll():
                    raise _failure(rank, control)
            if connection is None and time.monotonic() > deadline:
                ranks = ", ".join(map(str, missing))
                raise EngineError(
                    f"of the {self.place.world_size} processes of torchrun these ranks did not come within "
                    f"{JOIN_TIMEOUT_S} s: {ranks}",
                    "see that every host runs the same command and reaches the one of rank 0",
                )
        self._closing.callback(connection.close)
        hello: Hello = connection.recv()
        own = Hello(0, "main")
        if hello.version != own.version:
            raise EngineError(
                f"rank {hello.rank} runs moeinspect {hello.version}, rank 0 {own.version}",
                "install the same version on every host",
            )
        return hello, connection


class JoinedProcess:
    """The handle of a process that torchrun started, here or on another host."""

    ends_all = True

    def __init__(self, hello: Hello, connection: Connection) -> None:
        self._hello = hello
        self._connection = connection
        self._has_parted = False

    @property
    def where(self) -> str:
        """Its rank and process id, and the host if it is another one."""
        host = self._hello.host_name
        on_host = f" on {host}" if host != socket.gethostname() else ""
        return f"rank {self._hello.rank}, pid {self._hello.pid}{on_host}"

    def death(self) -> str | None:
        """See `ProcessHandle.death`; what it still says is dropped."""
        try:
            while not self._has_parted and self._connection.poll():
                self._has_parted = isinstance(self._connection.recv(), (Failed, Goodbye))
        except (EOFError, OSError):
            return "went away"
        return None

    def end(self, timeout_s: float) -> None:
        """See `ProcessHandle.end`; torchrun kills what does not end by itself."""
        hang_up(self._connection)


def _failure(rank: int, control: Connection) -> EngineError:
    """Why a rank says something, or hangs up, before it has work to do."""
    try:
        message = control.recv()
    except (EOFError, OSError):
        return WorkerLostError(
            f"rank {rank} of torchrun went away before the run began", "see what it said, and the system log"
        )
    if isinstance(message, Failed):
        return EngineError(f"rank {rank} of torchrun failed: {message.message}", message.hint)
    return EngineError(f"rank {rank} of torchrun sent {type(message).__name__} before the run began")


def _hosts(controls: dict[int, Connection]) -> dict[int, str]:
    """The address by which all ranks reach each rank.

    A rank on the host of rank 0 may have come by the loopback interface, which is of no use to others.
    """
    seen = {rank: hosts_of(control) for rank, control in controls.items()}
    ours = next((own for own, _ in seen.values() if not _is_loopback(own)), LOOPBACK)
    return {0: ours, **{rank: ours if _is_loopback(other) else other for rank, (_, other) in seen.items()}}


def _is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback
