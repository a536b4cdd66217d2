"""Connections between processes of several hosts: those of `multiprocessing`, over TCP.

Both sides prove that they know a key before anything is unpickled.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

PROOF_S = 5
"""How long who connects may take to prove that it knows the key."""

_MAPPED = "::ffff:"
"""How an IPv4 address begins where it stands for an IPv6 one."""

_KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""A host that vanished is noticed after half a minute, even where nothing is being sent."""


class TcpListener:
    """Takes connections of processes that know the key."""

    def __init__(self, host: str, key: bytes) -> None:
        """Listens at a free port of `host`, an address of this machine; empty: of all of its interfaces."""
        self._server = _server(host)
        self._key = key

    @property
    def port(self) -> int:
        """The port."""
        port: int = self._server.getsockname()[1]
        return port

    def accept(self, deadline: float) -> Connection:
        """The next connection; what cannot prove that it knows the key is dropped.

        Raises:
            TimeoutError: none came before `deadline` (`time.monotonic`).
        """
        while True:
            self._server.settimeout(max(0.001, deadline - time.monotonic()))
            accepted, _ = self._server.accept()
            connection = _connection(accepted, receive_timeout_s=PROOF_S)
            try:
                deliver_challenge(connection, self._key)
                answer_challenge(connection, self._key)
            except (AuthenticationError, EOFError, OSError):
                connection.close()
                continue
            _limit_receive(connection, 0)
            return connection

    def close(self) -> None:
        """Stops listening; who has connected and was not accepted is refused."""
        self._server.close()


def connect(host: str, port: int, key: bytes, timeout_s: float) -> Connection:
    """Connects to a `TcpListener`, and waits for as long as it lives until it accepts.

    Raises:
        OSError, EOFError: there is none, or it has gone.
        AuthenticationError: it does not know the key.
    """
    connection = _connection(socket.create_connection((host, port), timeout_s))
    try:
        answer_challenge(connection, key)
        deliver_challenge(connection, key)
    except BaseException:
        connection.close()
        raise
    return connection


def hosts_of(connection: Connection) -> tuple[str, str]:
    """The addresses of this machine and of the other one that the connection uses."""
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        own, other = (name[0].removeprefix(_MAPPED) for name in (end.getsockname(), end.getpeername()))
        return own, other


def _server(host: str) -> socket.socket:
    if not host and socket.has_dualstack_ipv6():
        with suppress(OSError):  # IPv6 may be switched off
            return socket.create_server(("", 0), family=socket.AF_INET6, backlog=128, dualstack_ipv6=True)
    return socket.create_server((host, 0), backlog=128)


def _connection(end: socket.socket, receive_timeout_s: int = 0) -> Connection:
    end.settimeout(None)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        with suppress(AttributeError, OSError):
            end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    connection = Connection(end.detach())
    if receive_timeout_s:
        _limit_receive(connection, receive_timeout_s)
    return connection


def _limit_receive(connection: Connection, seconds: int) -> None:
    """A read that takes longer fails with an OSError; 0: it may take any time."""
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, 0))
