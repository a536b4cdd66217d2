"""Whether a file really holds what one of its datasets claims, told before anything is read or allocated.

HDF5 hands out zeros for what lies beyond the end of a file and fills in what was never written, so a cut
file can look whole, and a damaged header can ask for any amount of memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import h5py
from h5py import h5d, h5z

_UNWRITTEN_LIMIT = 64 * 2**20
"""Bytes that a dataset may claim without storing them."""
_BEST_COMPRESSION = 1100
"""No built-in filter of HDF5 shrinks data further (deflate: 1032)."""


class StorageError(ValueError):
    """A dataset claims what the file does not hold."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A stretch of the file: `used` bytes from `offset` on are needed, `stored` are set aside."""

    offset: int
    used: int
    stored: int


def check_storage(dataset: h5py.Dataset, rows: int, file_size: int, all_written: bool) -> None:
    """Checks the first `rows` rows of a dataset that has one axis or more.

    With `all_written`, every chunk must be there; otherwise a chunk may be missing, as HDF5 allows.

    Raises:
        StorageError: bytes are missing, or far more are claimed than stored.
    """
    plan = dataset.id.get_create_plist()
    layout = plan.get_layout()
    if layout == h5d.VIRTUAL or plan.get_external_count():
        raise StorageError("is stored in another file")
    if layout == h5d.COMPACT:
        return  # inside the header, which has a checksum of its own or a size limit
    claimed = _row_bytes(dataset) * rows
    if layout == h5d.CHUNKED:
        if _chunk_bytes(dataset) > max(_UNWRITTEN_LIMIT, file_size) * _BEST_COMPRESSION:
            raise StorageError("has chunks far larger than the file")
        pieces = list(_chunks(dataset, rows))
        missing = _chunks_needed(dataset, rows) - len(pieces)
        if missing > 0 and all_written:
            raise StorageError(f"lacks {missing} of its chunks")
    else:
        offset = dataset.id.get_offset()
        pieces = [] if offset is None else [_Piece(offset, claimed, claimed)]
    if any(piece.offset + piece.used > file_size for piece in pieces):
        raise StorageError("reaches beyond the end of the file")
    stored = sum(piece.stored for piece in pieces) * (_BEST_COMPRESSION if _filtered(dataset) else 1)
    if claimed > stored + _UNWRITTEN_LIMIT:
        raise StorageError(f"claims {claimed} bytes, of which the file holds {stored} at most")


def has_rare_filter(dataset: h5py.Dataset) -> bool:
    """Whether reading runs a filter other than the much used ones (deflate, shuffle, checksum)."""
    plan = dataset.id.get_create_plist()
    usual = (h5z.FILTER_DEFLATE, h5z.FILTER_SHUFFLE, h5z.FILTER_FLETCHER32)
    return any(plan.get_filter(number)[0] not in usual for number in range(plan.get_nfilters()))


def _chunks(dataset: h5py.Dataset, rows: int) -> Iterator[_Piece]:
    """The stored chunks that hold any of the first `rows` rows."""
    filtered = _filtered(dataset)
    per_row = _chunk_bytes(dataset) // dataset.chunks[0]
    found: list[h5d.StoreInfo] = []
    dataset.id.chunk_iter(found.append)
    for info in found:
        first = info.chunk_offset[0]
        if first < rows:
            used = info.size if filtered else min(dataset.chunks[0], rows - first) * per_row
            yield _Piece(info.byte_offset, used, info.size)


def _chunks_needed(dataset: h5py.Dataset, rows: int) -> int:
    extents = (rows, *dataset.shape[1:])
    return math.prod(-(-n // c) for n, c in zip(extents, dataset.chunks, strict=True))


def _chunk_bytes(dataset: h5py.Dataset) -> int:
    return int(dataset.dtype.itemsize * math.prod(dataset.chunks))


def _row_bytes(dataset: h5py.Dataset) -> int:
    return int(dataset.dtype.itemsize * math.prod(dataset.shape[1:]))


def _filtered(dataset: h5py.Dataset) -> bool:
    return bool(dataset.id.get_create_plist().get_nfilters())
