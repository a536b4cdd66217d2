"""What a run shows on a terminal while it goes on; drawn with rich and taken away afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console as RichConsole
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text


class TerminalBar:
    """Requests that have ended, tokens, and tokens per second since the start."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task
        self._tokens = 0

    def advance(self, requests: int, tokens: int) -> None:
        """`requests` more requests have ended, with `tokens` tokens between them."""
        self._tokens += tokens
        elapsed = self._progress.tasks[self._task].elapsed or 0.0
        rate = f", {self._tokens / elapsed:,.0f} tokens/s" if elapsed > 0 else ""
        self._progress.update(self._task, advance=requests, done=f"{self._tokens:,} tokens{rate}")


@contextmanager
def terminal_bar(stream: TextIO, label: str, total: int, *, color: bool) -> Iterator[TerminalBar]:
    """Draws the bar on `stream`, a terminal, while the block runs, and takes it away afterwards."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("requests  {task.fields[done]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=_console(stream, color), transient=True) as progress:
        yield TerminalBar(progress, progress.add_task(label, total=total, done=""))


@contextmanager
def terminal_spinner(stream: TextIO, what: str, *, color: bool) -> Iterator[None]:
    """Shows that something is going on, on `stream`, a terminal, while the block runs."""
    with _console(stream, color).status(Text(what)):
        yield


def _console(stream: TextIO, color: bool) -> RichConsole:
    return RichConsole(file=stream, no_color=not color, markup=False, highlight=False, emoji=False)
