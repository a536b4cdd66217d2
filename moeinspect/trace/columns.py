"""The table of a trace's columns: one entry per dataset, read by the writer and by the reader.

Every column here grows along its first axis. Names and dtypes are contract (docs/trace-format.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import h5py
import numpy as np

from moeinspect.trace.request_id import MAX_REQUEST_ID_BYTES
from moeinspect.trace.schema import FinishReason, Lane, Origin, enum_names

KIND_BYTES = 64
WEIGHT_VERSION_BYTES = 64
UNKNOWN = -1
"""Stands in `/rows/step`, `/rows/slot` and `/events/step` for a number that the producer did not give."""


@dataclass(frozen=True, slots=True)
class Column:
    """One dataset of the trace with a number or a string per entry.

    `dtype` is how it is stored and, for numbers, how it is held in memory. `default` is what the reader
    puts in place of a column that a file lacks; None: a file without it is refused.
    """

    path: str
    dtype: np.dtype[Any]
    chunk: int
    default: int | None = None
    enum: type[IntEnum] | None = None
    minimum: int = 0
    """Smallest value that makes sense; a file with a smaller one is refused."""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def file_dtype(self) -> np.dtype[Any]:
        """The dtype as h5py creates it: enums by name, strings as fixed-length UTF-8."""
        if self.enum is not None:
            enum_dtype: np.dtype[Any] = h5py.enum_dtype(enum_names(self.enum), basetype=self.dtype)
            return enum_dtype
        return self.dtype


def utf8(length: int) -> np.dtype[Any]:
    """Fixed-length UTF-8 of `length` bytes: such strings survive a killed writer."""
    dtype: np.dtype[Any] = h5py.string_dtype("utf-8", length)
    return dtype


_I32, _I64 = np.dtype(np.int32), np.dtype(np.int64)
_U8, _U16 = np.dtype(np.uint8), np.dtype(np.uint16)
_F64 = np.dtype(np.float64)

IDS_PATH = "/rows/expert_ids"
WEIGHTS_PATH = "/rows/weights"
MARGIN_PATH = "/rows/margin"
TOKENS_PATH = "/tokens"
WORKER_PATH = "/rows/worker"
EVENT_WORKER_PATH = "/events/worker"
WEIGHT_VERSIONS_PATH = "/weight_versions"
ROWS_PER_CHUNK = 1024

REQUEST_ID = Column("/requests/id", utf8(MAX_REQUEST_ID_BYTES), chunk=256)
"""Written after everything else of its request: a request is in the trace once its id is."""


def _request(
    name: str,
    dtype: np.dtype[Any] = _I32,
    default: int | None = None,
    enum: type[IntEnum] | None = None,
    minimum: int = 0,
) -> Column:
    return Column(f"/requests/{name}", dtype, 512, default, enum, minimum)


REQUEST_COLUMNS = (
    _request("sample", default=0),
    _request("prompt_len"),
    _request("output_len"),
    _request("token_start", _I64),
    _request("row_start", _I64),
    _request("num_rows"),
    _request("start_pos"),
    _request("finish_reason", _U8, default=FinishReason.UNKNOWN, enum=FinishReason),
    _request("cached_tokens", default=0),
    _request("num_retractions", default=0),
    _request("num_drafted", default=0),
    _request("num_accepted", default=0),
    _request("weight_version", _U16, default=0),
    _request("num_weight_versions", _U16, default=1),
    _request("dp_rank", default=0, minimum=UNKNOWN),
)

VALIDITY = Column("/rows/validity", _U8, 4096)

ROW_COLUMNS = (
    VALIDITY,
    Column("/rows/origin", _U8, 4096, default=Origin.IMPORTED, enum=Origin),
    Column(WORKER_PATH, _U16, 4096, default=0),
    Column("/rows/step", _I32, 4096, default=UNKNOWN, minimum=UNKNOWN),
    Column("/rows/slot", _I32, 4096, default=UNKNOWN, minimum=UNKNOWN),
    Column("/rows/weight_version", _U16, 4096, default=0),
)

TOKENS = Column(TOKENS_PATH, _I32, 4096)

CELL_COLUMNS = tuple(
    Column(f"/rows/invalid_cells/{name}", _I64, 512, minimum=minimum)
    for name, minimum in (("row", 0), ("layer", 0), ("slot", 0), ("value", int(np.iinfo(np.int64).min)))
)

EVENT_COLUMNS = (
    Column(EVENT_WORKER_PATH, _U16, 1024),
    Column("/events/pid", _I32, 1024, default=0),
    Column("/events/lane", _U8, 1024, enum=Lane),
    Column("/events/step", _I32, 1024, default=UNKNOWN, minimum=UNKNOWN),
    Column("/events/kind", utf8(KIND_BYTES), 256),
    Column("/events/start", _F64, 1024),
    Column("/events/end", _F64, 1024),
)

ALL_PATHS = (
    "/",
    "/model",
    "/model/moe_layers",
    "/model/capture_exempt_layers",
    WEIGHT_VERSIONS_PATH,
    IDS_PATH,
    WEIGHTS_PATH,
    MARGIN_PATH,
    *(c.path for c in (REQUEST_ID, *REQUEST_COLUMNS, *ROW_COLUMNS, TOKENS, *CELL_COLUMNS, *EVENT_COLUMNS)),
)
"""Every object of the format that has attributes or values."""
