"""Opens an HDF5 file that anyone may have written, and takes nothing in it for granted.

Every failure of h5py in a `TraceFile` comes out as one `InputError` with the path.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from moeinspect.errors import InputError
from moeinspect.trace.columns import ALL_PATHS
from moeinspect.trace.growing_file import GrowingFile
from moeinspect.trace.output import reason
from moeinspect.trace.probe import fatal
from moeinspect.trace.storage import StorageError, check_storage, has_rare_filter

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_OPEN_FOR_WRITING, _OPEN_FOR_SWMR = 0x01, 0x04
_HDF5_ERRORS = (
    OSError,
    RuntimeError,  # NotImplementedError among them
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    ArithmeticError,
    MemoryError,
    SystemError,
)
"""What h5py raises on damaged files."""


class DamagedTraceError(InputError):
    """The file is not whole. With `growing`, another look may find it so: it is being written."""

    growing = False


class TraceFile:
    """An open file, to be closed. Errors of h5py in its methods, and inside `errors`, are `InputError`s."""

    def __init__(self, path: str | os.PathLike[str], probe: bool = True) -> None:
        """Opens the file, also while another process writes it or after such a process was killed.

        Without `probe`, a damaged file may end the process (`moeinspect.trace.probe`).

        Raises:
            InputError: missing, no ordinary file, not permitted, not HDF5, truncated or damaged.
        """
        self.path = os.fspath(path)
        _check_file(self.path)
        if probe:
            end = fatal(_touch_all, self.path)
            if end is not None:
                raise self.damaged(end)
        flags = _status_flags(self.path)
        if flags & _OPEN_FOR_WRITING and not flags & _OPEN_FOR_SWMR:
            raise self.invalid(
                "another program has it open for writing, or was killed while it had",
                "let it end, or record the trace again",
            )
        self._growing = bool(flags)
        self._datasets: dict[str, h5py.Dataset] = {}
        self._checked: dict[str, int] = {}
        try:
            self._view = GrowingFile(self.path) if self._growing else None
            self._file = _open(self._view or self.path)
        except _HDF5_ERRORS as error:
            raise self.damaged(reason(error)) from error

    @property
    def unfinished(self) -> bool:
        """Whether a writer has the file open at this moment, or was killed while it had."""
        return bool(_status_flags(self.path) & (_OPEN_FOR_WRITING | _OPEN_FOR_SWMR))

    def __enter__(self) -> TraceFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file. What was read from it stays."""
        with self.errors():
            self._file.close()

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Errors of h5py inside come out as `InputError`; the file stays open."""
        try:
            yield
        except _HDF5_ERRORS as error:
            raise self.damaged(reason(error)) from error

    def damaged(self, what: str) -> InputError:
        """The error for content that no intact trace has."""
        error = DamagedTraceError(
            f"{self.path}: damaged, or not a whole file: {what}", "record or copy it again"
        )
        error.growing = self.unfinished
        return error

    def invalid(self, what: str, hint: str = "") -> InputError:
        """The error for content that is whole and breaks the format."""
        return InputError(f"{self.path}: {what}", hint or "docs/trace-format.md says what a trace holds")

    def has(self, path: str) -> bool:
        """Whether there is an object at `path`."""
        return path in self._datasets or path in self._file

    def attribute(self, owner: str, name: str) -> str | int | float | None:
        """A scalar attribute; None where `owner` does not have it.

        Raises:
            InputError: it is no single string or number, or `owner` is not there.
        """
        if owner not in self._file:
            raise self.invalid(f"there is no {owner}")
        attributes = self._file[owner].attrs
        if name not in attributes:
            return None
        identifier = attributes.get_id(name)
        if identifier.shape not in ((), (1,)):
            raise self.invalid(f"attribute {name} of {owner} is not a single value")
        if not _is_plain(identifier.dtype):
            raise self.invalid(f"attribute {name} of {owner} is neither text nor a number")
        value = np.asarray(attributes[name]).reshape(-1)[0]
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, bytes):
            value = value.decode("utf-8")
        if not isinstance(value, str | int | float):
            raise self.invalid(f"attribute {name} of {owner} is neither text nor a number")
        return value

    def dataset(self, path: str) -> h5py.Dataset:
        """The dataset at `path`, of one axis or more.

        Raises:
            InputError: there is none.
        """
        known = self._datasets.get(path)
        if known is not None:
            return known
        try:
            if path not in self._file:
                raise self.invalid(f"there is no dataset {path}")
            found = self._file[path]
        except _HDF5_ERRORS as error:
            raise self.damaged(f"{path}: {reason(error)}") from error
        if not isinstance(found, h5py.Dataset):
            raise self.invalid(f"{path} is no dataset")
        if found.ndim == 0:
            raise self.invalid(f"{path} is a single value, not a column")
        if not _is_plain(found.dtype):
            raise self.invalid(f"{path} holds neither text nor numbers")
        self._datasets[path] = found
        return found

    def check(self, path: str, rows: int) -> None:
        """Checks that the file holds the first `rows` entries of a dataset along axis 0.

        Raises:
            InputError: there is no such dataset, or the file does not hold what it claims.
        """
        dataset = self.dataset(path)
        if rows <= self._checked.get(path, 0):
            return
        size = self._view.size if self._view else os.fstat(self._file.id.get_vfd_handle()).st_size
        try:
            check_storage(dataset, rows, size, all_written=self._growing)
        except StorageError as error:
            raise self.damaged(f"{path} {error}") from error
        except _HDF5_ERRORS as error:
            raise self.damaged(f"{path}: {reason(error)}") from error
        self._checked[path] = rows

    def read(self, path: str, stop: int | None = None, start: int = 0) -> NDArray[Any]:
        """Entries [start, stop) along axis 0 (all of them by default), as they are stored.

        Raises:
            InputError: there is no such dataset, or the file does not hold what it claims.
        """
        dataset = self.dataset(path)
        stop = len(dataset) if stop is None else stop
        if start >= stop:
            return np.zeros((0, *dataset.shape[1:]), dtype=dataset.dtype)
        self.check(path, stop)
        try:
            data: NDArray[Any] = dataset[start:stop]
            return data
        except _HDF5_ERRORS as error:
            raise self.damaged(f"{path}: {reason(error)}") from error

    def touch(self, path: str) -> None:
        """Does with a dataset or group what reading it does, as far as that can go wrong inside HDF5."""
        found = self._file[path]
        for name in found.attrs:
            with contextlib.suppress(Exception):
                self.attribute(path, name)
        if isinstance(found, h5py.Dataset) and (found.dtype.kind not in "iufbS" or has_rare_filter(found)):
            self.read(path)


def _open(source: str | GrowingFile) -> h5py.File:
    """Opens a path or a view. Each byte is wanted once, so a chunk cache would only copy."""
    if isinstance(source, str):
        return h5py.File(source, "r", locking="best-effort", rdcc_nbytes=0)
    return h5py.File(source, "r", rdcc_nbytes=0)


def _touch_all(path: str) -> None:
    with TraceFile(path, probe=False) as file:
        for owner in ALL_PATHS:
            with contextlib.suppress(Exception):
                file.touch(owner)


def _is_plain(dtype: np.dtype[Any]) -> bool:
    """Whether values are numbers or strings. HDF5 can crash while it reads damaged lists or references."""
    return dtype.kind in "iufbS" or h5py.check_string_dtype(dtype) is not None


def _check_file(path: str) -> None:
    try:
        mode = Path(path).stat().st_mode
        if stat.S_ISDIR(mode):
            raise InputError(f"{path}: is a folder, not a trace", "name the .h5 file")
        if not stat.S_ISREG(mode):
            raise InputError(f"{path}: is not an ordinary file", "name a trace file")
        head = _superblock(path)
        if head is None:
            empty = Path(path).stat().st_size == 0
            raise InputError(
                f"{path}: is {'empty' if empty else 'not an HDF5 file'}, so not a trace",
                "name a file that `moeinspect capture` wrote",
            )
    except (OSError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) else None
        raise InputError(f"{path}: cannot be read: {what or error}", "check the path") from error


def _superblock(path: str) -> bytes | None:
    """First bytes of HDF5's superblock, which stands at 0, 512, 1024, 2048 and so on; None: not HDF5."""
    with Path(path).open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        position = 0
        while position < end:
            file.seek(position)
            head = file.read(12)
            if head.startswith(_SIGNATURE):
                return head
            position = position * 2 or 512
    return None


def _status_flags(path: str) -> int:
    """HDF5's consistency flags: whether somebody has the file open for writing."""
    try:
        head = _superblock(path)
    except OSError:
        return 0
    return head[11] if head is not None and len(head) == 12 and head[8] >= 2 else 0
