"""Ctrl-C and SIGTERM, turned into one `KeyboardInterrupt` that never tears a row apart.

Signals belong to the process, so this module's state does, too: `handled()` installs the handlers for as
long as a command runs, `shielded()` holds an interrupt back until a write is whole.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(slots=True)
class _State:
    received: bool = False
    shields: int = 0
    held_back: bool = False


_state = _State()


def was_interrupted() -> bool:
    """Whether a signal has arrived since `handled()` was entered.

    Code that is interrupted may answer with an error of its own (an import that fails half way, a library
    that swallows the exception), so `cli.main` asks here rather than trusting the exception's type.
    """
    return _state.received


@contextmanager
def handled() -> Iterator[None]:
    """Raises `KeyboardInterrupt` in the main thread on SIGINT and SIGTERM while the block runs.

    A signal that the caller ignores (`nohup`, a script's background jobs) stays ignored. Outside the main
    thread signals cannot be handled, and the block runs as it is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _state.received = _state.held_back = False
    _state.shields = 0
    heeded = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, _on_signal) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def shielded() -> Iterator[None]:
    """Holds an interrupt back until the block has ended, so that what it writes is whole."""
    _state.shields += 1
    try:
        yield
    finally:
        _state.shields -= 1
    if _state.held_back and _state.shields == 0:
        _state.held_back = False
        raise KeyboardInterrupt


def _on_signal(_number: int, _frame: FrameType | None) -> None:
    _state.received = True
    if _state.shields:
        _state.held_back = True
        return
    raise KeyboardInterrupt
