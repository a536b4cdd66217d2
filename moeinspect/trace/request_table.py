"""The requests of a trace file, as far as the file holds their rows and tokens."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeinspect.trace.column_input import column_lengths, one_length, read_table
from moeinspect.trace.columns import (
    IDS_PATH,
    MARGIN_PATH,
    REQUEST_COLUMNS,
    REQUEST_ID,
    ROW_COLUMNS,
    TOKENS_PATH,
    WEIGHTS_PATH,
)
from moeinspect.trace.hdf5_input import TraceFile
from moeinspect.trace.ranges import first_duplicate, supported_requests, tiling_fault
from moeinspect.trace.schema import Requests


@dataclass(frozen=True, slots=True)
class RequestTable:
    """`/requests`, and how many rows and tokens belong to them."""

    requests: Requests
    num_rows: int
    num_tokens: int


def read_requests(file: TraceFile, strict: bool) -> RequestTable:
    """The requests that are whole: with `strict` all of them, else those up to where a write was cut.

    Raises:
        InputError: ranges leave gaps or overlap, an id is empty or there twice; with `strict` also if any
            request is not whole.
    """
    columns = (REQUEST_ID, *REQUEST_COLUMNS)
    length = one_length(file, column_lengths(file, columns), strict)
    table = _supported(file, Requests(**read_table(file, columns, length)), strict)
    _check_ids(file, table.requests)
    return table


def picked(requests: Requests, numbers: NDArray[np.int64]) -> Requests:
    """The requests of these numbers, their columns as they are."""
    return Requests(**{field.name: getattr(requests, field.name)[numbers] for field in fields(Requests)})


def num_tokens_of(requests: Requests) -> NDArray[np.int64]:
    """Tokens of each request [N]."""
    tokens: NDArray[np.int64] = requests.prompt_len.astype(np.int64) + requests.output_len
    return tokens


def _supported(file: TraceFile, requests: Requests, strict: bool) -> RequestTable:
    row_lengths = column_lengths(file, ROW_COLUMNS) | _array_lengths(file)
    rows_there = one_length(file, row_lengths, strict)
    tokens_there = len(file.dataset(TOKENS_PATH))
    num_tokens = num_tokens_of(requests)
    if not strict:
        ends = (requests.row_start + requests.num_rows, requests.token_start + num_tokens)
        whole = supported_requests(requests.id, ends, (rows_there, tokens_there))
        if whole < len(requests) - 1:  # a write that was cut short can have left one such entry
            raise file.damaged(f"rows or tokens of request {str(requests.id[whole])!r} are not there")
        requests, num_tokens = picked(requests, np.arange(whole)), num_tokens[:whole]
        rows_there = int(requests.num_rows.sum(dtype=np.int64))
        tokens_there = int(num_tokens.sum())
    _check_tiling(file, requests, "rows", requests.row_start, requests.num_rows, rows_there)
    _check_tiling(file, requests, "tokens", requests.token_start, num_tokens, tokens_there)
    return RequestTable(requests, rows_there, tokens_there)


def _array_lengths(file: TraceFile) -> dict[str, int]:
    optional = [path for path in (WEIGHTS_PATH, MARGIN_PATH) if file.has(path)]
    return {path: len(file.dataset(path)) for path in (IDS_PATH, *optional)}


def _check_tiling(
    file: TraceFile, requests: Requests, what: str, start: NDArray[Any], count: NDArray[Any], total: int
) -> None:
    fault = tiling_fault(start, count, total)
    if fault is None:
        return
    if len(requests) == 0:
        raise file.invalid(f"there are {total} {what} and no request")
    raise file.invalid(f"{what} of request {str(requests.id[fault[1]])!r}: its range {fault[0]}")


def _check_ids(file: TraceFile, requests: Requests) -> None:
    repeated = first_duplicate(requests.id, requests.sample)
    if repeated is not None:
        raise file.invalid(
            f"request {str(requests.id[repeated])!r}, sample {requests.sample[repeated]}, is there twice"
        )
    if (requests.id == "").any():
        raise file.invalid(f"request number {int((requests.id == '').argmax())} has an empty id")
