"""Reads the columns of a trace file into the types that the rest of moeinspect works with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from moeinspect.trace.columns import Column
from moeinspect.trace.file_facts import texts
from moeinspect.trace.hdf5_input import TraceFile
from moeinspect.trace.schema import Validity, enum_names

Table = dict[str, NDArray[Any]]
"""Columns of one length by name."""


def column_lengths(file: TraceFile, columns: Iterable[Column]) -> dict[str, int]:
    """Length of each column that is there.

    Raises:
        InputError: one that has no default is missing.
    """
    found = {}
    for column in columns:
        if column.default is None or file.has(column.path):
            found[column.path] = len(file.dataset(column.path))
    return found


def one_length(file: TraceFile, lengths: Mapping[str, int], strict: bool) -> int:
    """The length that all columns support: the shortest one's, where an append may have been cut short.

    Raises:
        InputError: with `strict`, if they differ.
    """
    shortest = min(lengths, key=lambda path: lengths[path])
    longest = max(lengths, key=lambda path: lengths[path])
    if strict and lengths[shortest] != lengths[longest]:
        raise file.invalid(
            f"{longest} has {lengths[longest]} entries, {shortest} has {lengths[shortest]}",
            "columns of one group have one length in a complete trace",
        )
    return lengths[shortest]


def read_table(file: TraceFile, columns: Iterable[Column], length: int) -> Table:
    """The first `length` entries of each column, by the column's name, defaults for missing ones."""
    return {column.name: read_column(file, column, length) for column in columns}


def read_column(file: TraceFile, column: Column, length: int) -> NDArray[Any]:
    """The first `length` entries of one column, in the column's dtype; strings as `str`.

    Raises:
        InputError: not a column of that kind, or a value that the column cannot mean.
    """
    if column.default is not None and not file.has(column.path):
        return np.full(length, column.default, dtype=column.dtype)
    if column.dtype.kind == "S":
        return texts(file, column.path, length)
    return decoded(file, column, file.read(column.path, length))


def decoded(file: TraceFile, column: Column, stored: NDArray[Any]) -> NDArray[Any]:
    """Entries of a column of numbers as the file holds them, in the column's dtype.

    Raises:
        InputError: not a column of that kind, or a value that the column cannot mean.
    """
    if stored.ndim != 1:
        raise file.invalid(f"{column.path} has {stored.ndim} axes, not one")
    if column.dtype.kind == "f":
        return _floats(file, column, stored)
    if stored.dtype.kind not in "iub":
        raise file.invalid(f"{column.path} has dtype {stored.dtype}, not a whole number's")
    if column.enum is not None:
        stored = _canonical_enum(file, column, stored)
    _check_range(file, column, stored)
    return stored.astype(column.dtype)


def _floats(file: TraceFile, column: Column, stored: NDArray[Any]) -> NDArray[Any]:
    if stored.dtype.kind not in "fiu":
        raise file.invalid(f"{column.path} has dtype {stored.dtype}, not a number's")
    return stored.astype(column.dtype)


def _canonical_enum(file: TraceFile, column: Column, stored: NDArray[Any]) -> NDArray[Any]:
    """Values by the names of the file's own enum type, which may number them otherwise."""
    theirs = h5py.check_enum_dtype(stored.dtype)
    plain = stored.astype(stored.dtype.base, copy=False)
    if theirs is None or column.enum is None:
        return plain
    ours = enum_names(column.enum)
    if all(ours.get(name) == value for name, value in theirs.items()):
        return plain
    canonical = np.full(len(plain), -1, dtype=np.int64)
    for name, value in theirs.items():
        if name in ours:
            canonical[plain == value] = ours[name]
    return canonical


def _check_range(file: TraceFile, column: Column, values: NDArray[Any]) -> None:
    if not values.size:
        return
    largest = int(np.iinfo(column.dtype).max)
    if column.enum is not None:
        largest = int(max(column.enum))
    elif column.name == "validity":
        largest = int(max(Validity))
    for value in (int(values.min()), int(values.max())):
        if not column.minimum <= value <= largest:
            raise file.invalid(f"{column.path} holds {value}, outside [{column.minimum}, {largest}]")
