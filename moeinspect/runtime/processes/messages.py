"""What balancer, prefill and decode workers say to each other. KV never travels in a message."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeinspect.runtime.answers import StepAnswers
from moeinspect.runtime.records import Event, PromptRequest, RequestKey


@dataclass(frozen=True, slots=True)
class Ready:
    """Worker to balancer: loaded, and waiting for requests."""


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """A request and the leaders that were chosen for it; without `decode` the other serves all of it."""

    prompt: PromptRequest
    seed: int
    prefill: int
    decode: int | None


@dataclass(frozen=True, slots=True)
class Submit:
    """Balancer to worker: run this batch."""

    requests: tuple[RoutedRequest, ...]


@dataclass(frozen=True, slots=True)
class Abort:
    """Balancer to both workers of a request: the client has gone away."""

    key: RequestKey


@dataclass(frozen=True, slots=True)
class KVDestination:
    """Decode to prefill worker: the KV of prompt positions [0, P) goes to these slots of mine."""

    key: RequestKey
    slots: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class KVReady:
    """Prefill to decode worker: the KV is in your slots, and this token was sampled after the prompt.

    Where KV is sent rather than stored, it follows as the pair's transfer number `transfer`. `hidden`
    [width * H] are the target's hidden states of the last prompt token, where a draft head reads them.
    """

    key: RequestKey
    prompt_len: int
    first_token: int
    transfer: int = 0
    hidden: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class KVAborted:
    """Prefill to decode worker: the prompt was aborted before it was computed; no KV comes."""

    key: RequestKey


@dataclass(frozen=True, slots=True)
class KVUnwanted:
    """Decode to prefill worker: the request was aborted before it had slots here; its KV goes nowhere."""

    key: RequestKey


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Balancer to worker: nothing more will come."""


@dataclass(frozen=True, slots=True)
class Goodbye:
    """Worker to balancer: its last message; its pools were found in order."""

    events: list[Event]


@dataclass(frozen=True, slots=True)
class Failed:
    """Worker to balancer: what went wrong, in one line.

    `broken_link`: another process is to blame, the one of the name `peer` if it is known.
    """

    message: str
    hint: str = ""
    broken_link: bool = False
    peer: str | None = None


WorkerMessage = Ready | StepAnswers | Goodbye | Failed
"""What a worker says to the balancer."""
