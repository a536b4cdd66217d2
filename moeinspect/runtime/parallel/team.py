"""The leader's end of its team: followers that do on their shares what the leader does on its own."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from multiprocessing.connection import Connection

import torch

from moeinspect.errors import EngineError
from moeinspect.runtime.forward_batch import ForwardBatch
from moeinspect.runtime.parallel.commands import Command, ReceiveKV, RunForward, SendKV
from moeinspect.runtime.parallel.groups import RankGroup


class Team:
    """A leader without followers, whose data-parallel rank is the only one."""

    def begin(self, batch: ForwardBatch) -> ForwardBatch:
        """A forward of the target begins on all ranks; the batch with what they have to know of it."""
        return batch

    def tell(self, command: Command) -> None:
        """Has every follower do something; returns at once."""


ALONE = Team()


class Ticket:
    """A transfer of all followers, over once each of them has said so."""

    def __init__(self, followers: Sequence[int]) -> None:
        self._missing = set(followers)

    def done(self, follower: int) -> None:
        """One of them has."""
        self._missing.discard(follower)

    def query(self) -> bool:
        """Whether all have."""
        return not self._missing


class LedTeam(Team):
    """Tells followers over their connections, and data-parallel ranks over their group."""

    def __init__(self, followers: dict[int, Connection], dp: RankGroup) -> None:
        """`dp` are the leaders of this worker's data-parallel ranks, on the compute stream."""
        self._followers = followers
        self._dp = dp
        self._lock = threading.Lock()
        self._numbers = count()
        self._tickets: dict[int, Ticket] = {}

    def begin(self, batch: ForwardBatch) -> ForwardBatch:
        """See `Team.begin`; runs on the compute stream.

        Raises:
            LinkError: another data-parallel rank has gone.
        """
        mine = torch.tensor([[batch.num_rows, batch.num_rows // batch.rows_per_request]])
        rows, requests = self._dp.all_gather(mine).view(-1, 2).t().tolist()
        batch = replace(batch, dp_rows=tuple(rows), dp_requests=tuple(requests))
        self.tell(RunForward(batch))
        return batch

    def tell(self, command: Command) -> None:
        """See `Team.tell`; may be called by any thread.

        Raises:
            EngineError: a follower has gone.
        """
        if not self._followers:
            return
        data = pickle.dumps(command, protocol=pickle.HIGHEST_PROTOCOL)
        with self._lock:
            for connection in self._followers.values():
                try:
                    connection.send_bytes(data)
                except (BrokenPipeError, ConnectionError) as error:
                    raise EngineError("a rank of this worker closed its connection") from error

    def transfer(self, make: Callable[[int], SendKV | ReceiveKV]) -> Ticket:
        """Has every follower transfer KV; `make` gets the number that they answer with."""
        number = next(self._numbers)
        ticket = self._tickets[number] = Ticket(list(self._followers))
        self.tell(make(number))
        return ticket

    def done(self, follower: int, number: int) -> None:
        """A follower says that its transfer is over."""
        ticket = self._tickets[number]
        ticket.done(follower)
        if ticket.query():
            del self._tickets[number]
