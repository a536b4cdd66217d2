"""A trace on disk of which only what is asked for is read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeinspect.errors import InputError
from moeinspect.trace import ids
from moeinspect.trace.column_input import (
    Table,
    column_lengths,
    decoded,
    one_length,
    read_table,
)
from moeinspect.trace.columns import (
    CELL_COLUMNS,
    EVENT_COLUMNS,
    IDS_PATH,
    MARGIN_PATH,
    ROW_COLUMNS,
    TOKENS,
    TOKENS_PATH,
    VALIDITY,
    WEIGHTS_PATH,
    Column,
)
from moeinspect.trace.file_facts import (
    check_format,
    read_model,
    read_run,
    read_weight_versions,
    read_worker_names,
)
from moeinspect.trace.hdf5_input import TraceFile
from moeinspect.trace.mapped import FileMap
from moeinspect.trace.request_table import RequestTable, num_tokens_of, picked, read_requests
from moeinspect.trace.request_view import RequestView
from moeinspect.trace.runs import Runs
from moeinspect.trace.schema import Events, InvalidCells, ModelFacts, Requests, Rows, RunInfo, Trace
from moeinspect.trace.stored import RowSource, row_source


class OpenTrace:
    """A trace file: what is small in memory (`run`, `model`, `requests`), rows and tokens by need.

    Of a file without an end only the requests that had ended are there. Use it as a context manager, or
    call `close`; arrays that it gave out stay valid, and are not to be written to.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Opens the file and checks what is small in it.

        Raises:
            InputError: the file is missing, unreadable, damaged, no trace, of another version, or breaks
                the format: one line that names the file and what is wrong.
        """
        self._file = TraceFile(path)
        self.path = self._file.path
        try:
            with self._file.errors():
                check_format(self._file)
                self.run: RunInfo = read_run(self._file)
                self.model: ModelFacts = read_model(self._file)
                # The id is written last: everything of a request whose id is seen here is in the file.
                self._table: RequestTable = read_requests(self._file, strict=self.run.complete)
                self.weight_versions: tuple[str, ...] = read_weight_versions(self._file)
                self._check_version_range("/requests/weight_version", self.requests.weight_version)
                self._sources: dict[str, RowSource] = dict(self._row_sources())
                self.notes: tuple[str, ...] = _notes(self.run, len(self.requests), self._file.unfinished)
        except BaseException:
            self._file.close()
            raise

    @property
    def requests(self) -> Requests:
        """`/requests`, all columns."""
        return self._table.requests

    @property
    def num_rows(self) -> int:
        """Rows of all requests together."""
        return self._table.num_rows

    def __len__(self) -> int:
        return len(self.requests)

    def __getitem__(self, key: int | str | tuple[str, int]) -> RequestView:
        """A request by its number, its id, or its id and sample (0 if not given).

        Raises:
            InputError: there is none.
        """
        if isinstance(key, int | np.integer):
            if not -len(self) <= key < len(self):  # an IndexError ends a loop over the requests
                raise IndexError(f"{self.path} has {len(self)} requests, no number {key}")
            return RequestView(self, int(key) % len(self))
        name, sample = (key, 0) if isinstance(key, str) else key
        found = np.flatnonzero((self.requests.id == name) & (self.requests.sample == sample))
        if not len(found):
            what = f"request {name!r}" + (f", sample {sample}" if sample else "")
            raise InputError(f"{self.path}: no {what}", "`requests.id` lists them")
        return RequestView(self, int(found[0]))

    def __enter__(self) -> OpenTrace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def source(self, path: str) -> RowSource:
        """The rows of one dataset of `/rows`, or the tokens, as the file stores them.

        Raises:
            KeyError: the file does not have it.
        """
        return self._sources[path]

    def has(self, path: str) -> bool:
        """Whether the file has this dataset of `/rows`."""
        return path in self._sources

    def tokens_of(self, request: int) -> NDArray[np.int32]:
        """Prompt then output ids [T] of request number `request`."""
        start = int(self.requests.token_start[request])
        count = int(self.requests.prompt_len[request]) + int(self.requests.output_len[request])
        return self._tokens(Runs.of(np.asarray([start]), np.asarray([count])))

    def row_range(self, request: int) -> slice:
        """Rows of request number `request` as a slice of the row axis."""
        start = int(self.requests.row_start[request])
        return slice(start, start + int(self.requests.num_rows[request]))

    def expert_ids(self, start: int, stop: int) -> NDArray[Any]:
        """Ids [rows, L, K] of rows [start, stop) of the file, in the trace's type; a view where possible.

        Raises:
            InputError: they are damaged.
        """
        stored = self._sources[IDS_PATH].read(start, stop)
        if stored.dtype == self.model.id_dtype:
            return stored
        return ids.canonical(stored, self.column(VALIDITY, start, stop), self.model).ids

    def column(self, column: Column, start: int, stop: int) -> NDArray[Any]:
        """Rows [start, stop) of a column of numbers in `/rows`; its default where the file lacks it.

        Raises:
            InputError: they are damaged.
        """
        return self._column(column, Runs.of(np.asarray([start]), np.asarray([stop - start])))

    def load(self, numbers: NDArray[np.int64] | None = None, *, events: bool = True) -> Trace:
        """The whole trace in memory, or of it the requests of these numbers, in this order.

        Ids come in the trace's own type (`ModelFacts.id_dtype`) whatever integer type the file holds. Rows
        and tokens of picked requests stand one after another, and the columns that say where (`row_start`,
        `token_start`) say so. Picked requests come without events.

        Raises:
            InputError: what is read is damaged or breaks the format.
        """
        with self._file.errors():
            if numbers is None:
                table = self._events() if events else None
                return self._trace(self._table.requests, Runs.whole(self.num_rows), self._all_tokens(), table)
            requests = picked(self.requests, numbers)
            num_tokens = num_tokens_of(requests)
            rows = Runs.of(requests.row_start, requests.num_rows)
            tokens = self._tokens(Runs.of(requests.token_start, num_tokens))
            requests = replace(
                requests,
                row_start=_starts(requests.num_rows),
                token_start=_starts(num_tokens),
            )
            return self._trace(requests, rows, tokens, None)

    def _trace(
        self, requests: Requests, runs: Runs, tokens: NDArray[np.int32], events: Events | None
    ) -> Trace:
        rows = self._rows(runs)
        return Trace(
            path=self.path,
            run=self.run,
            model=self.model,
            weight_versions=self.weight_versions,
            worker_names=read_worker_names(self._file, _num_workers(rows, events)),
            requests=requests,
            tokens=tokens,
            rows=rows,
            events=events,
            notes=self.notes,
        )

    def _row_sources(self) -> Iterator[tuple[str, RowSource]]:
        try:
            mapped = FileMap(self.path)
        except (OSError, ValueError):  # a file system that cannot map
            mapped = None
        shape = (self.model.num_captured_layers, self.model.top_k)
        shapes = {IDS_PATH: shape, WEIGHTS_PATH: shape, MARGIN_PATH: shape[:1]}
        paths = [IDS_PATH, *(path for path in (WEIGHTS_PATH, MARGIN_PATH) if self._file.has(path))]
        paths += [column.path for column in ROW_COLUMNS if self._file.has(column.path)]
        for path in paths:
            if path in shapes:
                self._check_array(path, shapes[path])
            yield path, row_source(self._file, path, self.num_rows, mapped)
        yield TOKENS_PATH, row_source(self._file, TOKENS_PATH, self._table.num_tokens, mapped)

    def _check_array(self, path: str, row_shape: tuple[int, ...]) -> None:
        dataset = self._file.dataset(path)
        _check_shape(self._file, path, dataset.shape, row_shape)
        if path == IDS_PATH and dataset.dtype.kind not in "iu":
            raise self._file.invalid(f"{path} has dtype {dataset.dtype}, not an integer one")
        if path != IDS_PATH and dataset.dtype.kind != "f":
            raise self._file.invalid(f"{path} has dtype {dataset.dtype}, not a floating-point one")

    def _check_version_range(self, path: str, column: NDArray[np.uint16]) -> None:
        count = len(self.weight_versions)
        if column.size and int(column.max()) >= count:
            raise self._file.invalid(f"{path} holds {column.max()}; /weight_versions has {count} entries")

    def _rows(self, runs: Runs) -> Rows:
        table = {column.name: self._column(column, runs) for column in ROW_COLUMNS}
        self._check_version_range("/rows/weight_version", table["weight_version"])
        held = ids.canonical(runs.read(self._sources[IDS_PATH]), table.pop("validity"), self.model)
        return Rows(
            expert_ids=held.ids,
            validity=held.validity,
            **table,
            weights=self._floats(WEIGHTS_PATH, runs),
            margin=self._floats(MARGIN_PATH, runs),
            invalid_cells=self._invalid_cells(runs, held.cells),
        )

    def _column(self, column: Column, runs: Runs) -> NDArray[Any]:
        if column.path not in self._sources:
            return np.full(len(runs), column.default, dtype=column.dtype)
        return decoded(self._file, column, runs.read(self._sources[column.path]))

    def _floats(self, path: str, runs: Runs) -> NDArray[np.float32] | None:
        if path not in self._sources:
            return None
        return runs.read(self._sources[path]).astype(np.float32, copy=False)

    def _all_tokens(self) -> NDArray[np.int32]:
        return self._tokens(Runs.whole(self._table.num_tokens))

    def _tokens(self, runs: Runs) -> NDArray[np.int32]:
        tokens: NDArray[np.int32] = decoded(self._file, TOKENS, runs.read(self._sources[TOKENS_PATH]))
        return tokens

    def _invalid_cells(self, runs: Runs, found: InvalidCells) -> InvalidCells:
        """The file's own cells of these rows and those `found` among their ids, in row order."""
        file, model = self._file, self.model
        if not file.has("/rows/invalid_cells"):
            return found
        lengths = column_lengths(file, CELL_COLUMNS)
        table = read_table(file, CELL_COLUMNS, one_length(file, lengths, strict=False))
        place = runs.places_of(table["row"])
        table["row"] = place
        table = {name: column[place >= 0] for name, column in table.items()}
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

    def _events(self) -> Events | None:
        if not self._file.has("/events"):
            return None
        length = one_length(self._file, column_lengths(self._file, EVENT_COLUMNS), self.run.complete)
        return Events(**read_table(self._file, EVENT_COLUMNS, length))


def _check_shape(file: TraceFile, path: str, found: tuple[int, ...], row_shape: tuple[int, ...]) -> None:
    if found[1:] == row_shape:
        return
    axes = ("layers", "slots")[: len(row_shape)]
    if len(found) == 1 + len(row_shape):
        for name, has, expected in zip(axes, found[1:], row_shape, strict=True):
            if has != expected:
                raise file.invalid(f"{path} has {has} {name}, where /model says {expected}")
    raise file.invalid(f"{path} has {len(found)} axes, not {1 + len(row_shape)} (rows, {', '.join(axes)})")


def _starts(counts: NDArray[Any]) -> NDArray[np.int64]:
    """Where each of several stretches begins that stand one after another."""
    starts: NDArray[np.int64] = np.cumsum(counts, dtype=np.int64) - counts
    return starts


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
