"""Writes a trace request by request; what it left behind is readable whenever it is killed.

An append goes to the file in three stages, each flushed before the next begins: the rows and tokens, the
columns of `/requests`, and last the request's id. A request is in the trace once its id is, so a reader
that counts ids never meets half a request.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import h5py

from moeinspect.errors import InputError, OutputError
from moeinspect.trace.columns import CELL_COLUMNS, EVENT_WORKER_PATH, IDS_PATH, REQUEST_ID, TOKENS_PATH
from moeinspect.trace.hdf5_output import (
    GrowingDataset,
    close_without_writing,
    create_file,
    overwrite_number,
)
from moeinspect.trace.layout import (
    add_columns,
    add_model,
    add_weight_versions,
    name_workers,
    set_root_attributes,
)
from moeinspect.trace.output import PendingFile, check_output_path, reason, require_space
from moeinspect.trace.record_blocks import (
    Blocks,
    encode,
    event_blocks,
    request_blocks,
    row_blocks,
    token_block,
)
from moeinspect.trace.request_id import check_request_id
from moeinspect.trace.schema import Events, ModelFacts, RequestRecord, RunInfo

__all__ = ["TraceWriter", "check_output_path", "check_request_id"]

_METADATA_SLACK = 64 * 1024
"""Bytes that an append may need for HDF5's own tables, beyond what new chunks bring along."""


@dataclass(frozen=True, slots=True)
class _Lengths:
    """How much of the trace is committed: the position at which the next append starts."""

    requests: int = 0
    rows: int = 0
    tokens: int = 0
    cells: int = 0
    events: int = 0


_Stage = list[tuple[GrowingDataset, int, Any]]


class TraceWriter:
    """A trace that is being written. Use it as a context manager, or call `close` or `abandon`.

    The file stands at `path` from the start, empty but readable, unless an older file is to be replaced:
    that one stays until the first request has ended. One thread at a time.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        run: RunInfo,
        model: ModelFacts,
        *,
        worker_names: Sequence[str],
        weight_versions: Sequence[str] = ("default",),
        with_weights: bool = False,
        with_margins: bool = False,
        with_events: bool = False,
        force: bool = False,
    ) -> None:
        """Makes the file with every object and attribute that it will have.

        `run.complete` is ignored: the file says 0 until `close`. The shape of each row is
        [`model.num_captured_layers`, `model.top_k`].

        Raises:
            OutputError: the path is taken or cannot be written; no file is left then.
        """
        if not model.num_captured_layers or not model.top_k:
            raise ValueError("a trace needs at least one layer and a top-k of at least one")
        self.path = os.fspath(path)
        self._model = model
        self._with_weights = with_weights
        self._with_margins = with_margins
        self._lengths = _Lengths()
        self._seen: set[tuple[str, int]] = set()
        self._file: h5py.File | None = None
        self._failure: OutputError | None = None
        self._closed = False
        self._columns: dict[str, GrowingDataset] = {}
        self._pending = PendingFile(path, force)
        try:
            with self._write_errors():
                self._file = create_file(self._pending.temporary)
                set_root_attributes(self._file, run)
                add_model(self._file, model)
                add_weight_versions(self._file, weight_versions)
                self._columns = add_columns(
                    self._file, model, weights=with_weights, margins=with_margins, events=with_events
                )
                name_workers(self._columns, worker_names)
                self._file.swmr_mode = True
                self._file.flush()
                if not self._pending.replaces:
                    self._pending.publish()
        except BaseException:
            self.abandon()
            raise

    def append(self, record: RequestRecord) -> None:
        """Adds one ended request. When this returns, the request survives a kill of the process.

        Raises:
            OutputError: the disk is full or the file cannot be written for another reason. What was
                appended before stays readable; the writer takes nothing more.
            InputError: the id cannot be stored, or a request of this id and sample is there already.
            ValueError: arrays of the record do not fit together.
        """
        check_request_id(record.id)
        key = (record.id, record.sample)
        if key in self._seen:
            raise InputError(
                f"request {record.id!r}, sample {record.sample}, is in {self.path} already",
                "give every request its own id",
            )
        at = self._lengths
        rows = row_blocks(record, self._model, self._with_weights, self._with_margins)
        cells = {column.path: rows.pop(column.path) for column in CELL_COLUMNS}
        cells[CELL_COLUMNS[0].path] = cells[CELL_COLUMNS[0].path] + at.rows
        tokens = token_block(record)
        requests = request_blocks(record, token_start=at.tokens, row_start=at.rows)
        stages = [
            self._stage(at.rows, rows)
            + self._stage(at.tokens, {TOKENS_PATH: tokens})
            + self._stage(at.cells, cells),
            self._stage(at.requests, requests),
            self._stage(at.requests, {REQUEST_ID.path: encode([record.id], REQUEST_ID)}),
        ]
        after = replace(
            at,
            requests=at.requests + 1,
            rows=at.rows + len(rows[IDS_PATH]),
            tokens=at.tokens + len(tokens),
            cells=at.cells + len(cells[CELL_COLUMNS[0].path]),
        )
        self._commit(stages, after)
        self._seen.add(key)

    def append_events(self, events: Events) -> None:
        """Adds to `/events`; a trace made without events ignores them.

        Raises:
            OutputError: as `append`.
        """
        if EVENT_WORKER_PATH not in self._columns or len(events) == 0:
            return
        at = self._lengths
        blocks = event_blocks(events)
        self._commit([self._stage(at.events, blocks)], replace(at, events=at.events + len(events)))

    def close(self, complete: bool = True) -> None:
        """Ends the file. With `complete` it then says so, after everything has reached the disk.

        Closing again, or after a failed write, does nothing.

        Raises:
            OutputError: the end of the file could not be written; it stays incomplete, and readable.
        """
        if self._file is None:
            return
        with self._write_errors():
            self._pending.publish()
            if complete:
                self._file.flush()
                os.fsync(self._file.id.get_vfd_handle())
                overwrite_number(self._file, "complete", 1)
            file, self._file = self._file, None
            file.close()
        self._closed = True

    def abandon(self) -> None:
        """Ends the writing and takes the file away; an older file that it was to replace stays."""
        self._drop()
        self._closed = True
        self._pending.discard()

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Without an error: complete. After one: incomplete, or no file if no request had ended.

        A Ctrl-C before the first request leaves an empty trace, unless an older file is to be replaced.
        """
        if kind is None:
            self.close()
        elif self._lengths.requests == 0 and (issubclass(kind, Exception) or not self._pending.published):
            self.abandon()
        else:
            with contextlib.suppress(OutputError):  # the error that is on its way says what happened
                self.close(complete=False)

    def _stage(self, start: int, blocks: Blocks) -> _Stage:
        return [(self._columns[path], start, block) for path, block in blocks.items()]

    def _commit(self, stages: list[_Stage], after: _Lengths) -> None:
        """Writes the stages one after another. An interrupt in between does not tear a request apart."""
        with self._write_errors():
            self._require_space(stages)
            try:
                self._write(stages, after)
            except KeyboardInterrupt:
                self._write(stages, after)  # positions are absolute: what is there already stays the same
                raise

    def _write(self, stages: list[_Stage], after: _Lengths) -> None:
        assert self._file is not None
        for stage in stages:
            for dataset, start, block in stage:
                dataset.write(start, block)
            self._file.flush()
        self._pending.publish()
        self._lengths = after

    def _require_space(self, stages: list[_Stage]) -> None:
        """Looks ahead, since HDF5 cannot go on after a failed write, and cannot close the file well either.

        Raises:
            OSError: the file cannot grow as much as it must. It has been closed, whole and incomplete.
        """
        assert self._file is not None
        blocks = [entry for stage in stages for entry in stage]
        growth = sum(dataset.new_bytes(start, len(block)) for dataset, start, block in blocks)
        payload = sum(block.nbytes for _, _, block in blocks)
        end_of_file = self._file.id.get_filesize() + growth + _METADATA_SLACK
        try:
            require_space(self._file.id.get_vfd_handle(), end_of_file, payload + _METADATA_SLACK)
        except OSError:
            file, self._file = self._file, None
            file.close()
            raise

    @contextlib.contextmanager
    def _write_errors(self) -> Iterator[None]:
        """Turns a failed write into one OutputError, after which the writer takes nothing more."""
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise ValueError(f"{self.path} is closed")
        try:
            yield
        except (OSError, RuntimeError) as error:
            self._drop()
            kept = self._lengths.requests
            hint = f"the file holds every request that had ended before: {kept}" if kept else ""
            self._failure = OutputError(f"cannot write {self.path}: {reason(error)}", hint)
            raise self._failure from error

    def _drop(self) -> None:
        """Lets go of the file as it is; never raises."""
        file, self._file = self._file, None
        if file is not None:
            close_without_writing(file)
