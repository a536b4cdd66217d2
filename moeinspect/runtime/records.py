"""What goes into the runtime and what comes out: plain data, no trace format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """One request to run. `seed` None: derived from the run's seed and `id`."""

    id: str
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    seed: int | None = None
    ignore_eos: bool = False


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


@dataclass(slots=True)
class FinishedRequest:
    """One ended request with its rows [n = tokens - 1, L, K] in router order.

    `finish_reason` is `length`, `stop` or `abort`; `origin` [n] holds `prefill`, `decode` or `verify` as
    the numbers of `ROW_ORIGINS`; `worker` [n] indexes `LocalRuntime.worker_names`.
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


ROW_ORIGINS = ("prefill", "decode", "verify")


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
