"""A process that torchrun started and that is not rank 0: it becomes a worker of rank 0's run."""

from __future__ import annotations

import os
import signal
import socket
import time
from dataclasses import replace
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection

from moeinspect.errors import EngineError
from moeinspect.runtime.processes.channel import Channels
from moeinspect.runtime.processes.joining import (
    JOIN_TIMEOUT_S,
    Assignment,
    Hello,
    MainAddress,
    open_store,
)
from moeinspect.runtime.processes.messages import Failed
from moeinspect.runtime.processes.tcp import TcpListener, connect
from moeinspect.runtime.processes.torchrun import TorchrunPlace
from moeinspect.runtime.processes.worker_process import worker_main


def work(place: TorchrunPlace) -> None:
    """Waits for what rank 0 assigns and does it; returns when rank 0 has no use for it, or has gone.

    Raises:
        EngineError: rank 0 never came, or something else listens in its place.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main = MainAddress.find(open_store(place))
    listener = TcpListener("" if place.spans_hosts else main.host, main.key)
    try:
        _join(place, main, listener)
    except AuthenticationError as error:
        raise EngineError(f"what rank {place.rank} found where rank 0 listens is another program") from error
    except (OSError, EOFError):
        # Rank 0 has ended, well or not. It has said what there is to say.
        return
    finally:
        listener.close()


def _join(place: TorchrunPlace, main: MainAddress, listener: TcpListener) -> None:
    def to_main(hello: Hello) -> Connection:
        connection = connect(main.host or place.master_host, main.port, main.key, JOIN_TIMEOUT_S)
        connection.send(hello)
        return connection

    control = to_main(Hello(place.rank, "main", os.getpid(), socket.gethostname(), listener.port))
    heartbeat = to_main(Hello(place.rank, "heartbeat"))
    # torchrun sends it to everybody when one ends; rank 0 decides what that means, and then hangs up.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assignment: Assignment = control.recv()
    try:
        peers = _meet_peers(place, assignment, main.key, listener)
    except (OSError, EOFError, AuthenticationError) as error:
        control.send(Failed(f"it could not meet its peers: {error}", "see that all hosts reach each other"))
        return
    listener.close()
    channels = Channels(control, peers, heartbeat, assignment.host)
    worker_main(replace(assignment.args, channels=channels))


def _meet_peers(
    place: TorchrunPlace, assignment: Assignment, key: bytes, listener: TcpListener
) -> dict[int, Connection]:
    peers = {}
    for rank, (host, port) in assignment.connect.items():
        peers[rank] = connect(host, port, key, JOIN_TIMEOUT_S)
        peers[rank].send(Hello(place.rank, "peer"))
    deadline = time.monotonic() + JOIN_TIMEOUT_S
    while len(peers) < len(assignment.connect) + len(assignment.accept):
        connection = listener.accept(deadline)
        hello: Hello = connection.recv()
        peers[hello.rank] = connection
    return peers
