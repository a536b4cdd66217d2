"""Connections of a worker process, and waiting on all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any


@dataclass(slots=True)
class Channels:
    """A worker's connections: to the balancer, and to the worker on the other side of the hand-off."""

    balancer: Connection
    peer: Connection


class Inbox:
    """Everything that can wake an idle worker: messages, and work that a stream has finished."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._wake_reader, self._wake_writer = Pipe(duplex=False)
        self._peer_open = True

    @property
    def wake(self) -> Callable[[], None]:
        """Ends an idle wait; may be called from any thread."""
        return lambda: self._wake_writer.send_bytes(b"!")

    def messages(self, *, block: bool) -> Iterator[Any]:
        """What has arrived; with `block`, waits until something has.

        Raises:
            EOFError: the balancer has gone, so there is nobody to work for.
        """
        sources = [self._channels.balancer, self._wake_reader]
        if self._peer_open:
            sources.append(self._channels.peer)
        ready = wait(sources, None if block else 0)
        if self._wake_reader in ready:
            self._wake_reader.recv_bytes()
        if self._channels.balancer in ready:
            yield self._channels.balancer.recv()
        if self._channels.peer in ready:
            try:
                yield self._channels.peer.recv()
            except (EOFError, ConnectionError):
                # The other worker has gone. The balancer sees that too and decides; nothing to do here.
                self._peer_open = False
