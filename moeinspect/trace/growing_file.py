"""A look at an HDF5 file that a writer has open, or was killed while it had, as if it had been closed.

HDF5's own way (`swmr=True`) sleeps, ever longer, on every piece of metadata that does not fit its checksum,
and so never comes to an end with a damaged file. Here the file is opened like a closed one, through a view
in which its first 48 bytes say so; a piece caught half written is then an error at once, and worth another
try. Layout of those bytes: HDF5 File Format Specification, "Superblock, versions 2 and 3".
"""

from __future__ import annotations

import io
import os
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_SIZE = 48
_FIELDS = struct.Struct("<8s4B4Q")
"""Signature; version, sizes of offsets and lengths, flags; base, extension, end of file, root group."""
_MARGIN = 2**30
"""How much the view is longer than the file: what was set aside and not written yet reads as zeros."""
_WORD = 0xFFFFFFFF


class GrowingFile(io.RawIOBase):
    """The file at `path` for reading, its superblock replaced by a closed file's."""

    def __init__(self, path: str) -> None:
        """Opens the file.

        Raises:
            ValueError: its superblock is damaged, or half written at this moment.
            OSError: it cannot be opened.
        """
        super().__init__()
        self._file = io.FileIO(path, "rb")
        try:
            end = self._file.seek(0, io.SEEK_END) + _MARGIN
            self._file.seek(0)
            self._head = closed_superblock(self._file.read(_SIZE), end)
        except BaseException:
            self._file.close()
            raise
        self._end = end
        self._position = 0

    @property
    def size(self) -> int:
        """Bytes that the file has at this moment."""
        return os.fstat(self._file.fileno()).st_size

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves to a position; the end is that of the view."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._end}[whence]
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        """The position."""
        return self._position

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fills the whole buffer: with the closed superblock, the file's bytes, zeros beyond its end."""
        view = memoryview(buffer).cast("B")
        self._file.seek(self._position)
        done = 0
        while done < len(view):
            count = self._file.readinto(view[done:])
            if not count:
                view[done:] = bytes(len(view) - done)
                break
            done += count
        if self._position < _SIZE:
            head = self._head[self._position : self._position + len(view)]
            view[: len(head)] = head
        self._position += len(view)
        return len(view)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
        super().close()


def closed_superblock(head: bytes, end: int) -> bytes:
    """The superblock [48 bytes] of a closed file of `end` bytes, from that of a file open for writing.

    Raises:
        ValueError: it is no superblock of version 2 or 3 with 8-byte addresses, or its checksum is wrong.
    """
    if len(head) < _SIZE or lookup3(head[:-4]) != int.from_bytes(head[-4:], "little"):
        raise ValueError("its superblock is damaged")
    signature, version, offsets, lengths, _flags, base, extension, _end, root = _FIELDS.unpack(head[:-4])
    if version not in (2, 3) or (offsets, lengths) != (8, 8) or base != 0:
        raise ValueError("its superblock is of an unknown kind")
    closed = _FIELDS.pack(signature, version, offsets, lengths, 0, base, extension, end, root)
    return closed + lookup3(closed).to_bytes(4, "little")


def lookup3(data: bytes) -> int:
    """HDF5's metadata checksum: Bob Jenkins' public-domain lookup3 (`hashlittle`), initial value 0."""
    a = b = c = (0xDEADBEEF + len(data)) & _WORD
    blocks = [data[start : start + 12].ljust(12, b"\0") for start in range(0, len(data), 12)]
    for number, block in enumerate(blocks):
        x, y, z = struct.unpack("<3I", block)
        a, b, c = (a + x) & _WORD, (b + y) & _WORD, (c + z) & _WORD
        a, b, c = _final(a, b, c) if number == len(blocks) - 1 else _mix(a, b, c)
    return c


def _rotate(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & _WORD


def _mix(a: int, b: int, c: int) -> tuple[int, int, int]:
    for bits in (4, 6, 8, 16, 19, 4):
        a = ((a - c) & _WORD) ^ _rotate(c, bits)
        c = (c + b) & _WORD
        a, b, c = b, c, a
    return a, b, c


def _final(a: int, b: int, c: int) -> tuple[int, int, int]:
    for bits in (14, 11, 25, 16, 4, 14, 24):
        c = ((c ^ b) - _rotate(b, bits)) & _WORD
        a, b, c = b, c, a
    return c, a, b
