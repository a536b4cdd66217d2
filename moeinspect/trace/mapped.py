"""Rows of a dataset where they lie in the file: views of a memory map, nothing copied, nothing decoded.

HDF5 stores the chunks of a dataset without filters as plain ranges of the file. A range of rows inside one
of them, or in chunks that lie one after another, is then an array already.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5d
from numpy.typing import NDArray


class FileMap:
    """A read-only map of a whole file, as long as the file was when it was made.

    It is unmapped once neither it nor a view of it is used any more.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Maps the file.

        Raises:
            OSError: it cannot be opened or mapped.
        """
        with Path(path).open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.bytes: NDArray[np.uint8] = np.frombuffer(self._map, dtype=np.uint8)

    def __len__(self) -> int:
        return len(self.bytes)

    def joined(self, starts: list[int], ends: list[int]) -> bytes:
        """Copies of the ranges of the file, one after another."""
        whole = self._map
        return b"".join([whole[start:end] for start, end in zip(starts, ends, strict=True)])

    def release(self, start: int, end: int) -> None:
        """Gives the memory of a range back; the next look at it reads the file again."""
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        last = end // mmap.PAGESIZE * mmap.PAGESIZE
        if first < last and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)


class MappedRows:
    """The first `rows` rows of a dataset, [rows, ...], in a `FileMap`.

    Piece p of the file, from byte `offset[p]` on, holds rows `first[p]` to `first[p + 1]`.
    """

    def __init__(
        self, file: FileMap, dataset: h5py.Dataset, first: NDArray[np.int64], offset: NDArray[np.int64]
    ) -> None:
        self._file = file
        self.dtype: np.dtype[Any] = dataset.dtype
        self.row_shape: tuple[int, ...] = dataset.shape[1:]
        self.row_bytes = int(self.dtype.itemsize * np.prod(self.row_shape, dtype=np.int64))
        self._first = first
        self._offset = offset

    @classmethod
    def of(cls, file: FileMap, dataset: h5py.Dataset, rows: int) -> MappedRows | None:
        """None where the file holds the rows in another form than memory does, or not all of them."""
        if dataset.dtype.kind not in "iuf" or not dataset.dtype.isnative or dataset.file.userblock_size:
            return None
        plan = dataset.id.get_create_plist()
        if plan.get_nfilters() or not all(dataset.shape[1:]):
            return None
        if plan.get_layout() == h5d.CONTIGUOUS and not plan.get_external_count():
            offset = dataset.id.get_offset()
            if offset is None:
                return None
            first, offsets, per_piece = np.zeros(1, np.int64), np.asarray([offset], np.int64), rows
        elif plan.get_layout() == h5d.CHUNKED and dataset.chunks[1:] == dataset.shape[1:]:
            first, offsets = _chunk_places(dataset, rows)
            per_piece = dataset.chunks[0]
        else:
            return None
        return cls._joined(file, dataset, rows, first, offsets, per_piece)

    @classmethod
    def _joined(
        cls,
        file: FileMap,
        dataset: h5py.Dataset,
        rows: int,
        first: NDArray[np.int64],
        offset: NDArray[np.int64],
        per_piece: int,
    ) -> MappedRows | None:
        """Checks that the pieces tile the rows and lie inside the file, and joins neighbours."""
        if not np.array_equal(first, np.arange(0, rows, max(1, per_piece))):
            return None
        row_bytes = int(dataset.dtype.itemsize * np.prod(dataset.shape[1:], dtype=np.int64))
        last = np.append(first[1:], rows)
        end = offset + (last - first) * row_bytes
        if len(end) and int(end.max()) > len(file):
            return None
        begins = np.ones(len(first), dtype=bool)
        begins[1:] = offset[1:] != end[:-1]
        return cls(file, dataset, np.append(first[begins], rows), offset[begins])

    def __len__(self) -> int:
        return int(self._first[-1])

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows [start, stop): a view where they lie in one piece, else a copy. Not to be written to."""
        pieces = list(self.pieces(start, stop))
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else self._array(np.zeros(0, np.uint8))

    def pieces(self, start: int, stop: int) -> Iterator[NDArray[Any]]:
        """Views that together are rows [start, stop)."""
        for begin, end in zip(*self._ranges(start, stop), strict=True):
            yield self._array(self._file.bytes[begin:end])

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """A copy of these rows, in this order."""
        if not len(rows):
            return self._array(np.zeros(0, np.uint8))
        piece = np.searchsorted(self._first, rows, side="right") - 1
        begin = self._offset[piece] + (rows - self._first[piece]) * self.row_bytes
        new = np.ones(len(rows), dtype=bool)
        new[1:] = begin[1:] != begin[:-1] + self.row_bytes
        ends = begin[np.append(np.flatnonzero(new)[1:], len(rows)) - 1] + self.row_bytes
        data = self._file.joined(begin[new].tolist(), ends.tolist())
        return self._array(np.frombuffer(data, dtype=np.uint8))

    def release(self, start: int, stop: int) -> None:
        """Gives the memory of rows [start, stop) back."""
        for begin, end in zip(*self._ranges(start, stop), strict=True):
            self._file.release(begin, end)

    def _ranges(self, start: int, stop: int) -> tuple[list[int], list[int]]:
        """Where rows [start, stop) lie in the file: bytes [begin, end) of each piece."""
        if start >= stop:
            return [], []
        first, last = np.searchsorted(self._first, [start, stop - 1], side="right") - 1
        piece = slice(int(first), int(last) + 1)
        low = np.maximum(self._first[piece], start)
        high = np.minimum(self._first[1:][piece], stop)
        at = self._offset[piece] - self._first[piece] * self.row_bytes
        return (at + low * self.row_bytes).tolist(), (at + high * self.row_bytes).tolist()

    def _array(self, data: NDArray[np.uint8]) -> NDArray[Any]:
        return data.view(self.dtype).reshape(-1, *self.row_shape)


def _chunk_places(dataset: h5py.Dataset, rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First row and byte offset of the stored chunks that hold any of the first `rows` rows."""
    found: list[h5d.StoreInfo] = []
    dataset.id.chunk_iter(found.append)
    places = np.asarray([(info.chunk_offset[0], info.byte_offset) for info in found], dtype=np.int64).reshape(
        -1, 2
    )
    places = places[places[:, 0] < rows]
    places = places[np.argsort(places[:, 0], kind="stable")]
    return places[:, 0], places[:, 1]
