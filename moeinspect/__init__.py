"""moeinspect: a debugger for the routing of Mixture-of-Experts language models."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    from moeinspect.trace.opened import OpenTrace

__version__ = "0.1.0"


def open_trace(path: str | os.PathLike[str]) -> OpenTrace:
    """Opens a trace for reading from Python; see `docs/how-to/python.md`.

    Raises:
        moeinspect.errors.InputError: the file is missing, damaged, or no trace.
    """
    from moeinspect.trace.reader import open_trace as opened  # h5py is not loaded before it is needed

    return opened(path)
