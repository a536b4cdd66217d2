"""Rows of a dataset that HDF5 has to decode: filtered, in other chunk shapes, or of another byte order."""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from moeinspect.trace.hdf5_input import TraceFile
from moeinspect.trace.mapped import FileMap, MappedRows


class StoredRows:
    """The first `rows` rows of a dataset, read through HDF5. What `MappedRows` does, only slower."""

    def __init__(self, file: TraceFile, path: str, rows: int) -> None:
        self._file = file
        self._path = path
        self._rows = rows
        dataset: h5py.Dataset = file.dataset(path)
        self.dtype: np.dtype[Any] = dataset.dtype
        self.row_shape: tuple[int, ...] = dataset.shape[1:]
        self.row_bytes = int(self.dtype.itemsize * np.prod(self.row_shape, dtype=np.int64))
        self._per_chunk = dataset.chunks[0] if dataset.chunks else max(1, rows)

    def __len__(self) -> int:
        return self._rows

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """A copy of rows [start, stop).

        Raises:
            InputError: they cannot be decoded.
        """
        return self._file.read(self._path, stop, start)

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """A copy of these rows, in this order; each chunk that holds one of them is decoded once.

        Raises:
            InputError: they cannot be decoded.
        """
        taken = np.empty((len(rows), *self.row_shape), dtype=self.dtype)
        chunk = rows // self._per_chunk
        order = np.argsort(chunk, kind="stable")
        cuts = np.flatnonzero(np.diff(chunk[order])) + 1
        for group in np.split(order, cuts) if len(rows) else ():
            wanted = rows[group]
            low = int(wanted.min())
            taken[group] = self.read(low, int(wanted.max()) + 1)[wanted - low]
        return taken

    def release(self, start: int, stop: int) -> None:
        """Nothing is held."""


RowSource = MappedRows | StoredRows


def row_source(file: TraceFile, path: str, rows: int, mapped: FileMap | None) -> RowSource:
    """The first `rows` rows of the dataset at `path`, checked to be in the file; mapped where possible.

    Raises:
        InputError: there is no such dataset, or the file does not hold what it claims.
    """
    file.check(path, rows)
    found = None if mapped is None else MappedRows.of(mapped, file.dataset(path), rows)
    return StoredRows(file, path, rows) if found is None else found
