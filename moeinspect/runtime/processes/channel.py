"""Connections of a worker process: waiting on all of them at once, and sending without waiting."""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from moeinspect.runtime.parallel.links import LOOPBACK

FLUSH_TIMEOUT_S = 5.0
"""How long a worker that ends may take to get its last messages out."""


@dataclass(slots=True)
class Channels:
    """A worker's connections: to the balancer, to other workers by index, and the one that its beats take.

    `host` is the address by which other workers reach it.
    """

    balancer: Connection
    peers: dict[int, Connection]
    heartbeat: Connection
    host: str = LOOPBACK

    @classmethod
    def unconnected(cls, host: str) -> Channels:
        """Of a process that will make its connections itself."""
        nothing: Any = None
        return cls(nothing, {}, nothing, host)


def hang_up(connection: Connection) -> None:
    """Ends the connection for both sides without closing it here: whoever waits on it wakes up."""
    with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


class Inbox:
    """Everything that can wake an idle worker: messages, and work that a stream has finished."""

    def __init__(self, channels: Channels) -> None:
        self._balancer = channels.balancer
        self._wake_reader, self._wake_writer = Pipe(duplex=False)
        self._sources = [self._balancer, self._wake_reader, *channels.peers.values()]
        self._worker_of = {connection: index for index, connection in channels.peers.items()}

    @property
    def wake(self) -> Callable[[], None]:
        """Ends an idle wait; may be called from any thread."""
        return lambda: self._wake_writer.send_bytes(b"!")

    def messages(self, timeout: float | None) -> Iterator[tuple[int | None, Any]]:
        """Senders and messages that have arrived, after at most `timeout` seconds or when somebody wakes it.

        The sender is the index of a worker, or None for the balancer.

        Raises:
            EOFError: the balancer has gone, so there is nobody to work for.
        """
        for ready in wait(self._sources, timeout):
            if ready is self._wake_reader:
                self._wake_reader.recv_bytes()
            elif ready is self._balancer:
                yield None, self._balancer.recv()
            else:
                yield from self._from_peer(ready)  # type: ignore[arg-type]

    def _from_peer(self, connection: Connection) -> Iterator[tuple[int | None, Any]]:
        try:
            message = connection.recv()
        except (EOFError, ConnectionError):
            # That worker has gone. The balancer sees it too and decides; nothing to do here.
            self._sources.remove(connection)
            return
        yield self._worker_of[connection], message


class Outbox:
    """Sends over one connection from a thread of its own, so that no worker ever waits to be read.

    Two workers that wait for each other to read would wait forever once both pipes are full. What is sent
    must not change afterwards.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="moeinspect-outbox", daemon=True)
        self._thread.start()

    def send(self, message: object) -> None:
        """Enqueues `message`; it is dropped if the other end has gone."""
        self._queue.put(message)

    def close(self) -> None:
        """Waits until everything has been sent, in bounded time."""
        self._queue.put(None)
        self._thread.join(FLUSH_TIMEOUT_S)

    def _run(self) -> None:
        while (message := self._queue.get()) is not None:
            try:
                self._connection.send(message)
            except (BrokenPipeError, ConnectionError, OSError):
                return
