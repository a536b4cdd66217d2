"""What the leader of a data-parallel rank tells the ranks that hold the rest of its model.

They come in the order in which the leader's streams reach them, and each follower's streams run them in that
order: so what a follower does stands to its forwards as it does on the leader.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from moeinspect.runtime.forward_batch import ForwardBatch


@dataclass(frozen=True, slots=True)
class Initialize:
    """Builds backends and graphs; hidden states after so many layers each are kept for a draft head."""

    kept_layers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RunForward:
    """A forward of the target begins; without rows it is an idle one."""

    batch: ForwardBatch


@dataclass(frozen=True, slots=True)
class MoveKV:
    """Copies the KV of slots [n] to other slots [n]."""

    from_slots: torch.Tensor
    to_slots: torch.Tensor


@dataclass(frozen=True, slots=True)
class MakeHostBuffer:
    """Makes room in host memory for the KV of so many slots, under a number."""

    number: int
    num_slots: int


@dataclass(frozen=True, slots=True)
class DropHostBuffer:
    """Frees it."""

    number: int


@dataclass(frozen=True, slots=True)
class CopyToHost:
    """Copies the KV of `slots` [n] into `places` [n] of a host buffer."""

    number: int
    slots: NDArray[np.int64]
    places: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CopyToDevice:
    """The way back."""

    number: int
    places: NDArray[np.int64]
    slots: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SendKV:
    """Sends the KV of `from_slots` [P] to `to_slots` [P] of the counterpart in the team of leader `decode`.

    Answered by `Done(ticket)`, as the next one is.
    """

    ticket: int
    decode: int
    from_slots: torch.Tensor
    to_slots: torch.Tensor
    transfer: int


@dataclass(frozen=True, slots=True)
class ReceiveKV:
    """Receives what the counterpart in the team of leader `prefill` sends as `transfer`, into `slots` [P]."""

    ticket: int
    prefill: int
    slots: torch.Tensor
    transfer: int


@dataclass(frozen=True, slots=True)
class ReplaceModel:
    """The next weight update takes place."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Nothing more will come."""


@dataclass(frozen=True, slots=True)
class Done:
    """Follower to leader: the transfer of this ticket is over."""

    ticket: int


Command = (
    Initialize
    | RunForward
    | MoveKV
    | MakeHostBuffer
    | DropHostBuffer
    | CopyToHost
    | CopyToDevice
    | SendKV
    | ReceiveKV
    | ReplaceModel
    | Stop
)
