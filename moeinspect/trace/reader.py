"""Reads a trace: ours or another producer's, complete, growing or left behind by a kill.

Nothing that could make a wrong answer look right passes: what breaks the format is refused with one line.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from moeinspect.trace.hdf5_input import DamagedTraceError
from moeinspect.trace.opened import OpenTrace
from moeinspect.trace.schema import Trace

_LOOKS = 5
"""How often a file that is being written is looked at: a piece of it may be caught half written."""
_PAUSE = 0.02

_Result = TypeVar("_Result")


def read_trace(path: str | os.PathLike[str]) -> Trace:
    """Reads the whole trace, or of one that has no end yet every request that had ended.

    Ids come in the trace's own type (`ModelFacts.id_dtype`) whatever integer type the file holds.

    Raises:
        InputError: the file is missing, unreadable, damaged, no trace, of another version, or breaks the
            format: one line that names the file and what is wrong.
    """

    def read() -> Trace:
        with OpenTrace(path) as trace:
            return trace.load()

    return _looked_at(path, read)


def open_trace(path: str | os.PathLike[str]) -> OpenTrace:
    """Opens a trace of which only what is asked for is read.

    Raises:
        InputError: as `read_trace`, for what is wrong outside of rows and tokens.
    """
    return _looked_at(path, lambda: OpenTrace(path))


def _looked_at(path: str | os.PathLike[str], read: Callable[[], _Result]) -> _Result:
    for look in range(_LOOKS):
        before = _state(path)
        try:
            return read()
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
