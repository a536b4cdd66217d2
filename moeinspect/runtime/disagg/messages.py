"""What balancer, prefill worker and decode worker say to each other. KV never travels in a message."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeinspect.runtime.capture.collector import CollectedRows
from moeinspect.runtime.records import Event, PromptRequest


@dataclass(frozen=True, slots=True)
class Ready:
    """Worker to balancer: loaded, and waiting for requests."""


@dataclass(frozen=True, slots=True)
class Submit:
    """Balancer to both workers: run this request."""

    prompt: PromptRequest
    seed: int


@dataclass(frozen=True, slots=True)
class KVDestination:
    """Decode to prefill worker: the KV of prompt positions [0, P) goes to these slots of mine."""

    request_id: str
    slots: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class KVReady:
    """Prefill to decode worker: the KV lies in your slots, and this token was sampled after the prompt."""

    request_id: str
    prompt_len: int
    first_token: int


@dataclass(frozen=True, slots=True)
class PrefillAnswer:
    """Prefill worker to balancer: a request's rows [0, P)."""

    request_id: str
    rows: CollectedRows
    events: list[Event]


@dataclass(frozen=True, slots=True)
class DecodeAnswer:
    """Decode worker to balancer: an ended request's tokens and the rows from `rows.start` on."""

    request_id: str
    output_ids: NDArray[np.int32]
    finish_reason: str
    num_drafted: int
    num_accepted: int
    rows: CollectedRows
    events: list[Event]


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Balancer to worker: nothing more will come."""


@dataclass(frozen=True, slots=True)
class Goodbye:
    """Worker to balancer: its last message; its pools were found in order."""

    events: list[Event]


@dataclass(frozen=True, slots=True)
class Failed:
    """Worker to balancer: what went wrong, in one line."""

    message: str
    hint: str = ""


WorkerMessage = Ready | PrefillAnswer | DecodeAnswer | Goodbye | Failed
"""What a worker says to the balancer."""
