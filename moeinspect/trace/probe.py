"""Looks at a file in a child process first: HDF5 can crash or loop for ever on a damaged one.

Metadata of old HDF5 files, and the heap that holds strings of variable length in any file, have no
checksums; a flipped byte there has been seen to end the process or to keep it busy without end. The child
does what the reader will do with such parts, so the reader itself only follows where a child came back from.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

_CPU_SECONDS = 2
_CPU_BYTES_PER_SECOND = 20_000_000


def fatal(touch: Callable[[str], None], path: str) -> str | None:
    """What would happen to a process that runs `touch(path)`, where that is fatal; None if it comes back.

    An exception in `touch` is not fatal. Where processes cannot be forked safely, nothing is tried.
    """
    if sys.platform != "linux":
        return None
    # An interrupt has to wait until the child's end is provided for.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    pid = status = None
    try:
        pid = _fork()
        if pid == 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            _run_child(touch, path)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if pid is None:
            return None
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        if pid and status is None:  # interrupted
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    if status == -signal.SIGXCPU:
        return "HDF5 does not come to an end with it"
    return f"HDF5 crashes on it (signal {-status})" if status < 0 else None


def _fork() -> int | None:
    """`os.fork`; None where no process can be made."""
    try:
        with warnings.catch_warnings():  # other threads hold nothing that the child needs
            warnings.simplefilter("ignore", DeprecationWarning)
            return os.fork()
    except OSError:
        return None


def _run_child(touch: Callable[[str], None], path: str) -> NoReturn:
    """Never returns, prints nothing, runs no exit handler of the parent's."""
    try:
        gc.disable()  # what the parent has left lying about is the parent's to clean up
        faulthandler.disable()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        _limit_cpu(path)
        with contextlib.suppress(BaseException):
            touch(path)
    finally:
        os._exit(0)


def _limit_cpu(path: str) -> None:
    import resource  # POSIX only, as is fork

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    seconds = _CPU_SECONDS + Path(path).stat().st_size // _CPU_BYTES_PER_SECOND
    _soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds if hard < 0 else min(seconds, hard), hard))
