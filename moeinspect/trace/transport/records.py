"""A trace as the list of its requests, and back: transport faults change requests one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from moeinspect.trace import ids
from moeinspect.trace.columns import REQUEST_COLUMNS, ROW_COLUMNS
from moeinspect.trace.schema import ModelFacts, RequestRecord, Requests, Rows, Trace, Validity

_DERIVED = ("prompt_len", "output_len", "token_start", "row_start", "num_rows")
_NUMBERS = {column.name: column.dtype for column in REQUEST_COLUMNS if column.name not in _DERIVED}
"""Columns of `/requests` that a record holds as they are."""

_ROWS = {column.name: column.dtype for column in ROW_COLUMNS}


def records_of(trace: Trace) -> list[RequestRecord]:
    """Every request with copies of its rows; ids [n, L, K] are int64, with the values that did not fit."""
    all_ids = trace.rows.expert_ids.astype(np.int64)
    cells = trace.rows.invalid_cells
    places = {int(layer): place for place, layer in enumerate(trace.axis_layers())}
    place = np.asarray([places[layer] for layer in cells.layer.tolist()], dtype=np.int64)
    all_ids[cells.row, place, cells.slot] = cells.value
    records = []
    for number, request_id in enumerate(trace.requests.id.tolist()):
        rows, tokens = trace.row_range(number), trace.tokens_of(number).copy()
        prompt_len = int(trace.requests.prompt_len[number])
        columns: dict[str, Any] = {
            _field(name): _taken(getattr(trace.rows, name), rows) for name in (*_ROWS, "weights", "margin")
        }
        numbers: dict[str, Any] = {name: int(getattr(trace.requests, name)[number]) for name in _NUMBERS}
        records.append(
            RequestRecord(
                id=request_id,
                prompt_ids=tokens[:prompt_len],
                output_ids=tokens[prompt_len:],
                expert_ids=all_ids[rows],
                **columns,
                **numbers,
            )
        )
    return records


def rows_taken(record: RequestRecord, source: NDArray[np.int64]) -> RequestRecord:
    """The request with the rows that `source` [n] names, in that order, and all that stands beside them."""
    names = ("expert_ids", *map(_field, _ROWS), "weights", "margin")
    columns: dict[str, Any] = {name: _taken(getattr(record, name), source) for name in names}
    return replace(record, **columns)


def trace_of(trace: Trace, records: Sequence[RequestRecord], model: ModelFacts | None = None) -> Trace:
    """`trace` with these requests in place of its own, stored as the writer would: never wrapped.

    `model` replaces the facts of the model, where the layers of the rows changed. Events are dropped: they
    tell of the engine, not of what the consumer holds.
    """
    facts = model or trace.model
    counts = [len(record.expert_ids) for record in records]
    shape = (0, facts.num_captured_layers, facts.top_k)
    columns: dict[str, Any] = {
        name: _joined([getattr(record, _field(name)) for record in records], dtype)
        for name, dtype in _ROWS.items()
    }
    given = np.concatenate([np.zeros(shape, np.int64), *(record.expert_ids for record in records)])
    # A row that was invalid for the values beside its ids is judged anew by those that it holds now.
    claimed = columns.pop("validity")
    claimed[claimed == Validity.INVALID] = Validity.REAL
    held = ids.store(given, claimed, facts)
    rows = Rows(
        expert_ids=held.ids,
        validity=held.validity,
        weights=_optional([record.weights for record in records]),
        margin=_optional([record.margin for record in records]),
        invalid_cells=held.cells,
        **columns,
    )
    tokens = [np.concatenate([record.prompt_ids, record.output_ids]) for record in records]
    return replace(
        trace,
        model=facts,
        requests=_requests(records, counts, [len(one) for one in tokens]),
        tokens=_joined(tokens, np.int32),
        rows=rows,
        events=None,
    )


def _requests(records: Sequence[RequestRecord], rows: Sequence[int], tokens: Sequence[int]) -> Requests:
    numbers: dict[str, Any] = {
        name: np.asarray([getattr(record, name) for record in records], dtype=dtype)
        for name, dtype in _NUMBERS.items()
    }
    return Requests(
        id=np.asarray([record.id for record in records], dtype=np.str_),
        prompt_len=np.asarray([len(record.prompt_ids) for record in records], dtype=np.int32),
        output_len=np.asarray([len(record.output_ids) for record in records], dtype=np.int32),
        token_start=_starts(tokens),
        row_start=_starts(rows),
        num_rows=np.asarray(rows, dtype=np.int32),
        **numbers,
    )


def _field(column: str) -> str:
    """What a record calls a column of `/rows`."""
    return "row_weight_version" if column == "weight_version" else column


def _taken(values: NDArray[Any] | None, rows: slice | NDArray[np.int64]) -> NDArray[Any] | None:
    return None if values is None else values[rows].copy()


def _starts(counts: Sequence[int]) -> NDArray[np.int64]:
    ends = np.cumsum(counts, dtype=np.int64)
    return np.concatenate([[0], ends])[: len(counts)].astype(np.int64)


def _joined(parts: Sequence[NDArray[Any]], dtype: DTypeLike) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype), *parts]).astype(dtype)


def _optional(parts: Sequence[NDArray[np.float32] | None]) -> NDArray[np.float32] | None:
    given = [part for part in parts if part is not None]
    return np.concatenate(given) if parts and len(given) == len(parts) else None
