"""Reads a trace into memory: ours or another producer's, complete, growing or left behind by a kill.

Nothing that could make a wrong answer look right passes: what breaks the format is refused with one line.
"""

from __future__ import annotations

import os
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeinspect.trace import ids
from moeinspect.trace.column_input import Table, column_lengths, one_length, read_column, read_table
from moeinspect.trace.columns import (
    CELL_COLUMNS,
    EVENT_COLUMNS,
    IDS_PATH,
    MARGIN_PATH,
    REQUEST_COLUMNS,
    REQUEST_ID,
    ROW_COLUMNS,
    TOKENS,
    TOKENS_PATH,
    WEIGHTS_PATH,
)
from moeinspect.trace.file_facts import (
    check_format,
    read_model,
    read_run,
    read_weight_versions,
    read_worker_names,
)
from moeinspect.trace.hdf5_input import DamagedTraceError, TraceFile
from moeinspect.trace.ranges import first_duplicate, supported_requests, tiling_fault
from moeinspect.trace.schema import Events, InvalidCells, ModelFacts, Requests, Rows, RunInfo, Trace

_LOOKS = 5
"""How often a file that is being written is looked at: a piece of it may be caught half written."""
_PAUSE = 0.02


def read_trace(path: str | os.PathLike[str]) -> Trace:
    """Reads the whole trace, or of one that has no end yet every request that had ended.

    Ids come in the trace's own type (`ModelFacts.id_dtype`) whatever integer type the file holds.

    Raises:
        InputError: the file is missing, unreadable, damaged, no trace, of another version, or breaks the
            format: one line that names the file and what is wrong.
    """
    for look in range(_LOOKS):
        before = _state(path)
        try:
            return _read(path)
        except DamagedTraceError as error:
            nobody_writes = look > 0 and _state(path) == before
            if not error.growing or nobody_writes or look == _LOOKS - 1:
                raise
            time.sleep(_PAUSE)
    raise AssertionError("unreachable")


def _state(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    """Something that changes when the file is written to."""
    try:
        status = Path(path).stat()
    except (OSError, ValueError):
        return None
    return status.st_mtime_ns, status.st_size


def _read(path: str | os.PathLike[str]) -> Trace:
    with TraceFile(path) as file:
        check_format(file)
        run, model = read_run(file), read_model(file)
        # The id is written last, so everything of a request whose id is seen here is in the file already.
        requests = _requests(file, strict=run.complete)
        requests, num_rows, num_tokens = _supported(file, requests, strict=run.complete)
        _check_requests(file, requests)
        rows = _rows(file, model, num_rows)
        tokens = read_column(file, TOKENS, num_tokens)
        events = _events(file, strict=run.complete)
        versions = read_weight_versions(file)
        _check_versions(file, requests, rows, len(versions))
        return Trace(
            path=file.path,
            run=run,
            model=model,
            weight_versions=versions,
            worker_names=read_worker_names(file, _num_workers(rows, events)),
            requests=requests,
            tokens=tokens,
            rows=rows,
            events=events,
            notes=_notes(run, len(requests), file.unfinished),
        )


def _requests(file: TraceFile, strict: bool) -> Requests:
    columns = (REQUEST_ID, *REQUEST_COLUMNS)
    length = one_length(file, column_lengths(file, columns), strict)
    return Requests(**read_table(file, columns, length))


def _supported(file: TraceFile, requests: Requests, strict: bool) -> tuple[Requests, int, int]:
    """The requests that are whole, and how many rows and tokens belong to them.

    Raises:
        InputError: ranges leave gaps or overlap; with `strict` also if any request is not whole.
    """
    row_lengths = column_lengths(file, ROW_COLUMNS) | _array_lengths(file)
    rows_there = one_length(file, row_lengths, strict)
    tokens_there = len(file.dataset(TOKENS_PATH))
    num_tokens = requests.prompt_len.astype(np.int64) + requests.output_len
    if not strict:
        ends = (requests.row_start + requests.num_rows, requests.token_start + num_tokens)
        whole = supported_requests(requests.id, ends, (rows_there, tokens_there))
        if whole < len(requests) - 1:  # a write that was cut short can have left one such entry
            raise file.damaged(f"rows or tokens of request {str(requests.id[whole])!r} are not there")
        requests, num_tokens = _first(requests, whole), num_tokens[:whole]
        rows_there = int(requests.num_rows.sum(dtype=np.int64))
        tokens_there = int(num_tokens.sum())
    _check_tiling(file, requests, "rows", requests.row_start, requests.num_rows, rows_there)
    _check_tiling(file, requests, "tokens", requests.token_start, num_tokens, tokens_there)
    return requests, rows_there, tokens_there


def _array_lengths(file: TraceFile) -> dict[str, int]:
    optional = [path for path in (WEIGHTS_PATH, MARGIN_PATH) if file.has(path)]
    return {path: len(file.dataset(path)) for path in (IDS_PATH, *optional)}


def _first(requests: Requests, count: int) -> Requests:
    return Requests(**{field.name: getattr(requests, field.name)[:count] for field in fields(Requests)})


def _check_tiling(
    file: TraceFile, requests: Requests, what: str, start: NDArray[Any], count: NDArray[Any], total: int
) -> None:
    fault = tiling_fault(start, count, total)
    if fault is None:
        return
    if len(requests) == 0:
        raise file.invalid(f"there are {total} {what} and no request")
    raise file.invalid(f"{what} of request {str(requests.id[fault[1]])!r}: its range {fault[0]}")


def _check_requests(file: TraceFile, requests: Requests) -> None:
    repeated = first_duplicate(requests.id, requests.sample)
    if repeated is not None:
        raise file.invalid(
            f"request {str(requests.id[repeated])!r}, sample {requests.sample[repeated]}, is there twice"
        )
    if (requests.id == "").any():
        raise file.invalid(f"request number {int((requests.id == '').argmax())} has an empty id")


def _rows(file: TraceFile, model: ModelFacts, length: int) -> Rows:
    table = read_table(file, ROW_COLUMNS, length)
    shape = (model.num_captured_layers, model.top_k)
    _check_shape(file, IDS_PATH, shape)
    stored = file.read(IDS_PATH, length)
    if stored.dtype.kind not in "iu":
        raise file.invalid(f"{IDS_PATH} has dtype {stored.dtype}, not an integer one")
    held = ids.canonical(stored, table.pop("validity"), model)
    return Rows(
        expert_ids=held.ids,
        validity=held.validity,
        **table,
        weights=_floats(file, WEIGHTS_PATH, shape, length),
        margin=_floats(file, MARGIN_PATH, shape[:1], length),
        invalid_cells=_invalid_cells(file, model, length, held.cells),
    )


def _check_shape(file: TraceFile, path: str, row_shape: tuple[int, ...]) -> None:
    found = file.dataset(path).shape
    if found[1:] == row_shape:
        return
    axes = ("layers", "slots")[: len(row_shape)]
    if len(found) == 1 + len(row_shape):
        for name, has, expected in zip(axes, found[1:], row_shape, strict=True):
            if has != expected:
                raise file.invalid(f"{path} has {has} {name}, where /model says {expected}")
    raise file.invalid(f"{path} has {len(found)} axes, not {1 + len(row_shape)} (rows, {', '.join(axes)})")


def _floats(
    file: TraceFile, path: str, row_shape: tuple[int, ...], length: int
) -> NDArray[np.float32] | None:
    if not file.has(path):
        return None
    _check_shape(file, path, row_shape)
    stored = file.read(path, length)
    if stored.dtype.kind != "f":
        raise file.invalid(f"{path} has dtype {stored.dtype}, not a floating-point one")
    return stored.astype(np.float32, copy=False)


def _invalid_cells(file: TraceFile, model: ModelFacts, num_rows: int, found: InvalidCells) -> InvalidCells:
    """The file's own cells of the first `num_rows` rows and those `found` among its ids, in row order."""
    if not file.has("/rows/invalid_cells"):
        return found
    lengths = column_lengths(file, CELL_COLUMNS)
    table = read_table(file, CELL_COLUMNS, one_length(file, lengths, strict=False))
    kept = table["row"] < num_rows
    table = {name: column[kept] for name, column in table.items()}
    if not np.isin(table["layer"], model.layer_indices()).all() or (table["slot"] >= model.top_k).any():
        raise file.invalid("/rows/invalid_cells names layers or slots that the ids do not have")
    both: Table = {name: np.concatenate([column, getattr(found, name)]) for name, column in table.items()}
    order = np.lexsort((both["slot"], both["layer"], both["row"]))
    return InvalidCells(
        row=both["row"][order],
        layer=both["layer"][order].astype(np.int32),
        slot=both["slot"][order].astype(np.int32),
        value=both["value"][order],
    )


def _events(file: TraceFile, strict: bool) -> Events | None:
    if not file.has("/events"):
        return None
    length = one_length(file, column_lengths(file, EVENT_COLUMNS), strict)
    return Events(**read_table(file, EVENT_COLUMNS, length))


def _check_versions(file: TraceFile, requests: Requests, rows: Rows, count: int) -> None:
    columns = {
        "/requests/weight_version": requests.weight_version,
        "/rows/weight_version": rows.weight_version,
    }
    for path, column in columns.items():
        if column.size and int(column.max()) >= count:
            raise file.invalid(f"{path} holds {column.max()}; /weight_versions has {count} entries")


def _num_workers(rows: Rows, events: Events | None) -> int:
    columns = [rows.worker] if events is None else [rows.worker, events.worker]
    return max((int(column.max()) + 1 for column in columns if column.size), default=0)


def _notes(run: RunInfo, requests: int, unfinished: bool) -> tuple[str, ...]:
    ended = (
        f"{requests} request{'s' if requests != 1 else ''} had ended" if requests else "no request had ended"
    )
    if run.complete:
        return () if requests else (ended,)
    if unfinished:
        return (f"the run is still going on or was killed; {ended}",)
    return (f"the run did not end cleanly; {ended}",)
