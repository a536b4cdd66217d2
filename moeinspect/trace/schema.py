"""What a trace is: names, versions and the in-memory form that everything else works on.

Two words used everywhere: a *row* is one token of one request (all layers); a *cell* is one row at one
MoE layer, K expert ids. Array names carry their shape where it helps: R rows, L captured layers, K slots
of the top-k, T tokens, N requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

FORMAT = "moeinspect-trace"
FORMAT_VERSION = "1.0"


class Validity(IntEnum):
    """What the producer claims about a row (`/rows/validity`)."""

    REAL = 0
    MISSING = 1
    FILLER = 2
    INVALID = 3


class Origin(IntEnum):
    """Which kind of forward computed a row (`/rows/origin`)."""

    PREFILL = 0
    DECODE = 1
    VERIFY = 2
    PREFIX_CACHE = 3
    TRANSFERRED = 4
    IMPORTED = 5


class FinishReason(IntEnum):
    """Why a request ended (`/requests/finish_reason`)."""

    LENGTH = 0
    STOP = 1
    ABORT = 2
    UNKNOWN = 3


class Lane(IntEnum):
    """Where an event ran (`/events/lane`)."""

    HOST = 0
    COMPUTE = 1
    COPY = 2
    TRANSFER = 3


def enum_names(enum: type[IntEnum]) -> dict[str, int]:
    """The members as they are spelled in the file: lower case, hyphens."""
    return {member.name.lower().replace("_", "-"): int(member) for member in enum}


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The attributes of `/`: who made the trace and how."""

    producer: str
    producer_version: str
    created: str
    complete: bool
    engine: str
    engine_version: str
    machine_key: str
    deterministic: bool
    run_config: Mapping[str, Any]
    injected_faults: tuple[str, ...] = ()
    baseline_of: str = ""
    id_space: str = "logical"
    slot_order: str = "router"


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """`/model`: what the routing ids refer to."""

    name: str
    architecture: str
    fingerprint: str
    num_hidden_layers: int
    num_experts: int
    top_k: int
    layer_axis: str
    """`moe`: axis 1 of the ids counts MoE layers; `all`: it counts every decoder layer."""
    moe_layers: tuple[int, ...]
    capture_exempt_layers: tuple[int, ...] = ()

    @property
    def num_captured_layers(self) -> int:
        """Length of axis 1 of `/rows/expert_ids`."""
        return self.num_hidden_layers if self.layer_axis == "all" else len(self.moe_layers)

    @property
    def sentinel(self) -> int:
        """The value that stands for "no id": the maximum of the stored dtype."""
        return int(np.iinfo(self.id_dtype).max)

    @property
    def id_dtype(self) -> np.dtype[Any]:
        """Smallest type of the ids: uint8 up to 256 experts, else uint16."""
        return np.dtype(np.uint8 if self.num_experts <= 256 else np.uint16)

    def layer_indices(self) -> NDArray[np.int64]:
        """Absolute layer index of each position of axis 1 of the ids [L]."""
        if self.layer_axis == "all":
            return np.arange(self.num_hidden_layers, dtype=np.int64)
        return np.asarray(self.moe_layers, dtype=np.int64)


@dataclass(slots=True)
class RequestRecord:
    """One ended request with its rows: the unit in which a trace is written.

    `expert_ids` [n, L, K] may be any integer type, negative values included; the writer stores it as the
    contract says (never wrapped). `row_weight_version` [n] indexes `/weight_versions`.
    """

    id: str
    prompt_ids: NDArray[np.int32]
    output_ids: NDArray[np.int32]
    expert_ids: NDArray[Any]
    validity: NDArray[np.uint8]
    origin: NDArray[np.uint8]
    worker: NDArray[np.uint16]
    step: NDArray[np.int32]
    slot: NDArray[np.int32]
    row_weight_version: NDArray[np.uint16]
    weights: NDArray[np.float32] | None = None
    margin: NDArray[np.float32] | None = None
    sample: int = 0
    start_pos: int = 0
    finish_reason: int = FinishReason.LENGTH
    cached_tokens: int = 0
    num_retractions: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    weight_version: int = 0
    num_weight_versions: int = 1
    dp_rank: int = 0


@dataclass(frozen=True, slots=True)
class Requests:
    """`/requests`: one numpy column [N] per field."""

    id: NDArray[np.str_]
    sample: NDArray[np.int32]
    prompt_len: NDArray[np.int32]
    output_len: NDArray[np.int32]
    token_start: NDArray[np.int64]
    row_start: NDArray[np.int64]
    num_rows: NDArray[np.int32]
    start_pos: NDArray[np.int32]
    finish_reason: NDArray[np.uint8]
    cached_tokens: NDArray[np.int32]
    num_retractions: NDArray[np.int32]
    num_drafted: NDArray[np.int32]
    num_accepted: NDArray[np.int32]
    weight_version: NDArray[np.uint16]
    num_weight_versions: NDArray[np.uint16]
    dp_rank: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.id)


@dataclass(frozen=True, slots=True)
class InvalidCells:
    """`/rows/invalid_cells`: original values that could not be stored as ids."""

    row: NDArray[np.int64]
    layer: NDArray[np.int32]
    slot: NDArray[np.int32]
    value: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rows:
    """`/rows`: rows of all requests, one after another."""

    expert_ids: NDArray[Any]
    validity: NDArray[np.uint8]
    origin: NDArray[np.uint8]
    worker: NDArray[np.uint16]
    step: NDArray[np.int32]
    slot: NDArray[np.int32]
    weight_version: NDArray[np.uint16]
    weights: NDArray[np.float32] | None
    margin: NDArray[np.float32] | None
    invalid_cells: InvalidCells

    def __len__(self) -> int:
        return len(self.expert_ids)


@dataclass(frozen=True, slots=True)
class Events:
    """`/events`: what ran where and when; seconds on one clock for all workers."""

    worker: NDArray[np.uint16]
    pid: NDArray[np.int32]
    lane: NDArray[np.uint8]
    step: NDArray[np.int32]
    kind: NDArray[np.str_]
    start: NDArray[np.float64]
    end: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True)
class Trace:
    """A whole trace in memory; only requests that had ended are in it."""

    path: str
    run: RunInfo
    model: ModelFacts
    weight_versions: tuple[str, ...]
    worker_names: tuple[str, ...]
    """Names that `/rows/worker` and `/events/worker` index (attribute `names` of those columns)."""
    requests: Requests
    tokens: NDArray[np.int32]
    rows: Rows
    events: Events | None = None
    notes: tuple[str, ...] = field(default=())
    """What the reader noticed and a person should know, such as a run that did not end cleanly."""

    def tokens_of(self, request: int) -> NDArray[np.int32]:
        """Prompt then output ids [T] of request number `request`."""
        start = int(self.requests.token_start[request])
        count = int(self.requests.prompt_len[request]) + int(self.requests.output_len[request])
        return self.tokens[start : start + count]

    def row_range(self, request: int) -> slice:
        """Rows of request number `request` as a slice of the row axis."""
        start = int(self.requests.row_start[request])
        return slice(start, start + int(self.requests.num_rows[request]))

    def axis_layers(self) -> NDArray[np.int64]:
        """Absolute layer index of each position of axis 1 of the ids [L]."""
        return self.model.layer_indices()
