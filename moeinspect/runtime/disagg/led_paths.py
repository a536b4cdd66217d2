"""KV of a leader and its team on the way: each rank sends its share to its counterpart on the other side."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from moeinspect.runtime.disagg.kv_receiver import ReceivePath
from moeinspect.runtime.disagg.kv_sender import IsDone, SendPath
from moeinspect.runtime.parallel.commands import ReceiveKV, SendKV
from moeinspect.runtime.parallel.team import LedTeam


@dataclass(frozen=True, slots=True)
class _All:
    parts: tuple[IsDone, ...]

    def query(self) -> bool:
        """Whether every part is over."""
        return all(part.query() for part in self.parts)


class LedSendPath:
    """A leader's `SendPath`: a transfer is over when its own part and those of its followers are."""

    def __init__(self, own: SendPath, team: LedTeam) -> None:
        self.announces_first = own.announces_first
        self._own = own
        self._team = team

    def send(self, decode: int, from_slots: torch.Tensor, to_slots: torch.Tensor, transfer: int) -> IsDone:
        """See `SendPath.send`; `decode` is the leader of the other side."""
        ticket = self._team.transfer(lambda n: SendKV(n, decode, from_slots, to_slots, transfer))
        return _All((self._own.send(decode, from_slots, to_slots, transfer), ticket))


class LedReceivePath:
    """A leader's `ReceivePath` where KV has to be received."""

    def __init__(self, own: ReceivePath, team: LedTeam) -> None:
        self._own = own
        self._team = team

    def receive(self, prefill: int, slots: torch.Tensor, transfer: int) -> IsDone | None:
        """See `ReceivePath.receive`; `prefill` is the leader of the other side."""
        ticket = self._team.transfer(lambda n: ReceiveKV(n, prefill, slots, transfer))
        own = self._own.receive(prefill, slots, transfer)
        return ticket if own is None else _All((own, ticket))
