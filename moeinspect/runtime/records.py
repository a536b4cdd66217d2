"""What goes into the runtime and what comes out: plain data, no trace format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

RequestKey = tuple[str, int]
"""Id and sample of a request."""


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """One sample of one request to run; a request with n samples is n of these with one id.

    `seed` None: derived from the run's seed and `id`; `sample` tells the samples of one request apart.
    `max_new_tokens` 0 computes the prompt and samples nothing. `output_start` says how many of `prompt_ids`
    at their end are output tokens already, so that sampling goes on where it was. `abort_after`: the client
    goes away once it has seen that many output tokens.
    """

    id: str
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    seed: int | None = None
    ignore_eos: bool = False
    sample: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    return_routed_experts: bool = True
    abort_after: int | None = None
    output_start: int = 0

    @property
    def key(self) -> RequestKey:
        """What tells this sample apart from every other of the run."""
        return self.id, self.sample


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """Facts of the loaded target that a trace records."""

    name: str
    architecture: str
    fingerprint: str
    num_hidden_layers: int
    num_experts: int
    top_k: int
    moe_layers: tuple[int, ...]
    vocab_size: int
    hash_layers: tuple[int, ...] = ()


@dataclass(slots=True)
class FinishedRequest:
    """One ended request with its rows [n, L, K] in router order, one for each token that was fed.

    n is tokens - 1, or all prompt tokens if none was sampled. `finish_reason` is `length`, `stop` or
    `abort`; `origin` [n] holds the numbers of `ROW_ORIGINS`; `worker` [n] indexes
    `LocalRuntime.worker_names`; `weight_version` [n] counts the weight updates before a row was first
    computed. `has_routed_experts` False: the request did not ask for its rows, or they were lost on the way;
    the ids then hold the dtype's maximum. `dp_rank` is the data-parallel rank that sampled its tokens.
    """

    id: str
    prompt_ids: NDArray[np.int32]
    output_ids: NDArray[np.int32]
    finish_reason: str
    expert_ids: NDArray[Any]
    origin: NDArray[np.uint8]
    worker: NDArray[np.uint16]
    step: NDArray[np.int32]
    slot: NDArray[np.int32]
    weights: NDArray[np.float32] | None = None
    margin: NDArray[np.float32] | None = None
    num_drafted: int = 0
    num_accepted: int = 0
    sample: int = 0
    cached_tokens: int = 0
    num_retractions: int = 0
    weight_version: NDArray[np.uint16] | None = None
    has_routed_experts: bool = True
    dp_rank: int = 0

    @property
    def key(self) -> RequestKey:
        """What tells this sample apart from every other of the run."""
        return self.id, self.sample


ROW_ORIGINS = ("prefill", "decode", "verify", "prefix-cache")


@dataclass(frozen=True, slots=True)
class Event:
    """An interval of work; `lane` is host, compute, copy or transfer; times are seconds of one clock."""

    worker: int
    pid: int
    lane: str
    step: int
    kind: str
    start: float
    end: float
