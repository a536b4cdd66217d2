"""An HDF5 file that other processes may read while it grows (SWMR), and its growing columns."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping
from typing import Any

import h5py
import numpy as np
from h5py import h5a, h5f, h5p, h5s
from numpy.typing import NDArray

from moeinspect.trace.columns import Column

PAGE = 4096


def create_file(path: str | os.PathLike[str]) -> h5py.File:
    """A new HDF5 file that can be switched to SWMR writing.

    - Versions: `v110`, the oldest that knows SWMR, so that tools of HDF5 1.10 and later read the file.
    - File space in pages of 4096 bytes: no small piece of metadata straddles a page of the page cache,
      where the kernel may cut a write in two when the process is killed.
    - No chunk cache: what is appended goes to the file at once, and a chunk is never written twice.
    - Up to 64 attributes stay in the root's header, so that `complete` can be changed in place.
    """
    access = h5p.create(h5p.FILE_ACCESS)
    access.set_libver_bounds(h5f.LIBVER_V110, h5f.LIBVER_V110)
    access.set_cache(0, 521, 0, 0.75)
    creation = h5p.create(h5p.FILE_CREATE)
    creation.set_attr_phase_change(64, 48)
    creation.set_obj_track_times(False)
    creation.set_file_space_strategy(h5f.FSPACE_STRATEGY_PAGE, False, 1)
    creation.set_file_space_page_size(PAGE)
    return h5py.File(h5f.create(os.fsencode(path), h5f.ACC_EXCL, creation, access))


def set_attributes(target: h5py.Group | h5py.Dataset, values: Mapping[str, str | int]) -> None:
    """Strings as UTF-8 (h5py hands them out as `str`), numbers as int64."""
    for name, value in values.items():
        if isinstance(value, str):
            target.attrs.create(name, _storable(value), dtype=h5py.string_dtype("utf-8"))
        else:
            target.attrs.create(name, value, dtype=np.int64)


def _storable(text: str) -> str:
    """File names may hold bytes that are no UTF-8, and HDF5 strings end at a NUL."""
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode("utf-8")


def overwrite_number(file: h5py.File, name: str, value: int) -> None:
    """Changes a number attribute of the root in place, which is possible while SWMR is on."""
    attribute = h5a.open(file.id, name.encode())
    attribute.write(np.asarray(value, dtype=np.int64))
    attribute.close()


def close_without_writing(file: h5py.File) -> None:
    """Lets go of a file after a failed write and leaves it on disk as it is at this moment; never raises.

    Closing makes HDF5 write again what it could not write, and then say that the file was closed well. So
    its file descriptor is pointed elsewhere first: what SWMR has put on disk so far is consistent.
    """
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        elsewhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(elsewhere, file.id.get_vfd_handle())
        os.close(elsewhere)
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        file.close()


class GrowingDataset:
    """A dataset that grows along its first axis and is written at absolute positions.

    Writing the same block twice changes nothing, so an interrupted append can simply be run again.
    """

    def __init__(
        self, file: h5py.File, path: str, dtype: np.dtype[Any], chunk: int, row_shape: tuple[int, ...] = ()
    ) -> None:
        self.path = path
        self._row_shape = row_shape
        dataset = file.create_dataset(
            path,
            shape=(0, *row_shape),
            maxshape=(None, *row_shape),
            chunks=(chunk, *row_shape),
            dtype=dtype,
            fill_time="never",  # a chunk's bytes are written once, by the rows that fill it
        )
        self.dataset = dataset
        self._chunk = chunk
        self._dtype = dataset.dtype
        self._type = dataset.id.get_type()

    @classmethod
    def of_column(cls, file: h5py.File, column: Column) -> GrowingDataset:
        """The dataset of one column of the table."""
        return cls(file, column.path, column.file_dtype, column.chunk)

    def write(self, start: int, block: NDArray[Any]) -> None:
        """Stores `block` at rows `[start, start + len(block))`; rows before must be there already.

        Raises:
            OSError, RuntimeError: HDF5 could not write.
        """
        if len(block) == 0:
            return
        data = np.ascontiguousarray(block, dtype=self._dtype)
        identifier = self.dataset.id
        identifier.set_extent((start + len(data), *self._row_shape))
        in_file = identifier.get_space()
        in_file.select_hyperslab((start, *(0,) * len(self._row_shape)), data.shape)
        identifier.write(h5s.create_simple(data.shape), in_file, data, self._type)

    def new_bytes(self, start: int, count: int) -> int:
        """Upper bound of what the file grows by when `count` rows are written at `start`."""
        chunks = -(-(start + count) // self._chunk) - -(-start // self._chunk)
        row_bytes = int(self._dtype.itemsize) * math.prod(self._row_shape)
        return chunks * (self._chunk * row_bytes + 2 * PAGE)
