"""Moves the KV of finished prompts into the slots that a decode worker allocated for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from moeinspect.runtime.records import RequestKey
from moeinspect.runtime.scheduler.request import Request


class IsDone(Protocol):
    """Something that can be asked whether it is over, such as a `StreamEvent`."""

    def query(self) -> bool:
        """Whether it is."""
        ...


class SendPath(Protocol):
    """How KV leaves this worker."""

    announces_first: bool
    """Whether the other side has to know of a transfer before it can take place."""

    def send(self, decode: int, from_slots: torch.Tensor, to_slots: torch.Tensor, transfer: int) -> IsDone:
        """Starts to move the KV of `from_slots` [P] to `to_slots` [P] of a decode worker.

        What comes back is done once this worker's slots are no longer read. `transfer` counts the pair's
        transfers.
        """
        ...


Announce = Callable[[Request, int, int], None]
"""Tells a decode worker about a request's KV: the request, the worker, the number of the transfer."""


Refuse = Callable[[RequestKey, int], None]
"""Tells a decode worker that a request's KV will not come."""


@dataclass(frozen=True, slots=True)
class _Destination:
    decode: int
    slots: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class _Transfer:
    request: Request
    decode: int
    number: int
    done: IsDone


class KVSender:
    """Sends each request's KV once.

    A transfer starts when the prompt has been computed and the decode worker has said where to, whichever
    comes last. Transfers to different workers do not wait for each other. A destination is always answered,
    by KV or by a refusal, since its slots are taken until then.
    """

    def __init__(self, path: SendPath, announce: Announce, refuse: Refuse) -> None:
        self._path = path
        self._announce = announce
        self._refuse = refuse
        self._aborted: set[RequestKey] = set()
        self._unwanted: set[RequestKey] = set()
        self._not_sent: list[Request] = []
        self._destinations: dict[RequestKey, _Destination] = {}
        self._prefilled: dict[RequestKey, Request] = {}
        self._transfers: list[_Transfer] = []
        self._counts: dict[int, int] = defaultdict(int)

    def destination_known(self, key: RequestKey, decode: int, slots: NDArray[np.int64]) -> None:
        """The decode worker allocated `slots` [P] for the prompt's positions."""
        self._destinations[key] = _Destination(decode, slots)
        if key in self._aborted:
            self.aborted(key)
        else:
            self._start_if_possible(key)

    def aborted(self, key: RequestKey) -> None:
        """The request ended before its prompt was computed: there is nothing to send."""
        self._aborted.add(key)
        destination = self._destinations.pop(key, None)
        if destination is not None:
            self._refuse(key, destination.decode)

    def unwanted(self, key: RequestKey) -> None:
        """The decode worker will never name a destination."""
        self._unwanted.add(key)
        if key in self._prefilled:
            self._not_sent.append(self._prefilled.pop(key))

    def prefilled(self, request: Request) -> None:
        """Every prompt position of `request` has been computed and its step processed."""
        if request.key in self._unwanted:
            self._not_sent.append(request)
            return
        self._prefilled[request.key] = request
        self._start_if_possible(request.key)

    def completed(self) -> list[Request]:
        """Requests whose KV has left, or need not leave, since the last call; nothing reads their slots."""
        not_sent, self._not_sent = self._not_sent, []
        done = [transfer for transfer in self._transfers if transfer.done.query()]
        self._transfers = [transfer for transfer in self._transfers if transfer not in done]
        for transfer in done:
            if not self._path.announces_first:
                self._announce(transfer.request, transfer.decode, transfer.number)
        return not_sent + [transfer.request for transfer in done]

    def _start_if_possible(self, key: RequestKey) -> None:
        if key not in self._destinations or key not in self._prefilled:
            return
        request, to = self._prefilled.pop(key), self._destinations.pop(key)
        number = self._counts[to.decode]
        self._counts[to.decode] += 1
        if self._path.announces_first:
            self._announce(request, to.decode, number)
        from_slots = torch.from_numpy(request.slots[: request.prompt_len].copy())
        done = self._path.send(to.decode, from_slots, torch.from_numpy(to.slots), number)
        self._transfers.append(_Transfer(request, to.decode, number, done))
