"""What a command reads from and writes to: one object for the three streams and what is known of them.

Commands talk to the outside through this object alone, so that piped and interactive output are both
plain unit tests. Results go to stdout, messages and progress to stderr.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, Literal, Protocol, TextIO

from moeinspect.errors import OutputError
from moeinspect.printable import printable

ColorChoice = Literal["auto", "always", "never"]


class ProgressBar(Protocol):
    """What a command tells while it runs."""

    def advance(self, requests: int, tokens: int) -> None:
        """`requests` more requests have ended, with `tokens` tokens between them."""


class _SilentBar:
    def advance(self, requests: int, tokens: int) -> None:
        """Nobody watches."""


class Console:
    """The process's streams, and whether somebody watches them."""

    def __init__(
        self, stdin: TextIO, stdout: TextIO, stderr: TextIO, environ: Mapping[str, str] | None = None
    ) -> None:
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr
        self._environ = os.environ if environ is None else environ
        self._color: ColorChoice = "auto"
        self.quiet = False
        self.verbosity = 0

    @classmethod
    def for_process(cls) -> Console:
        """The console of this process; a stream that the caller closed reads and writes nothing."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                # A file name may hold bytes that are no text: show them escaped, never fail on them.
                stream.reconfigure(errors="backslashreplace")
        return cls(
            sys.stdin or io.StringIO(),
            sys.stdout or io.StringIO(),
            sys.stderr or io.StringIO(),
        )

    def configure(self, *, color: ColorChoice, quiet: bool, verbosity: int) -> None:
        """Takes over what the user asked for once the options are parsed."""
        self._color, self.quiet, self.verbosity = color, quiet, verbosity

    def color(self, stream: TextIO) -> bool:
        """Whether to colour `stream`: --color, then NO_COLOR, then FORCE_COLOR, then a terminal."""
        if self._color != "auto":
            return self._color == "always"
        if self._environ.get("NO_COLOR"):
            return False
        if self._environ.get("FORCE_COLOR"):
            return True
        return is_terminal(stream) and self._environ.get("TERM") != "dumb"

    @property
    def result_width(self) -> int | None:
        """Columns of the terminal that stdout is, None if it is none: then lines are never cut."""
        return shutil.get_terminal_size().columns if is_terminal(self.stdout) else None

    def prompt_bytes(self) -> bytes:
        """All of stdin."""
        buffer: IO[bytes] | None = getattr(self.stdin, "buffer", None)
        return buffer.read() if buffer is not None else self.stdin.read().encode("utf-8", "surrogateescape")

    def result(self, text: str) -> None:
        """Writes what the command was asked for to stdout.

        A reader that has gone away (`| head`) is no trouble: the rest is dropped and the verdict stays.

        Raises:
            OutputError: the disk is full, for one.
        """
        try:
            self.stdout.write(text if text.endswith("\n") else text + "\n")
            self.stdout.flush()
        except BrokenPipeError:
            self.discard_stdout()
        except OSError as error:
            reason = error.strerror or str(error)
            raise OutputError(f"cannot write the result to stdout: {reason}") from error

    def flush(self) -> None:
        """Writes out what help and version printed; raises BrokenPipeError if nobody reads."""
        self.stdout.flush()

    def note(self, text: str) -> None:
        """A message on stderr; -q leaves it out."""
        if not self.quiet:
            self._message("", "", text)

    def detail(self, text: str) -> None:
        """A message that only -v asks for."""
        if self.verbosity:
            self.note(text)

    def warning(self, text: str) -> None:
        """Something that the user should look at; -q leaves it out."""
        if not self.quiet:
            self._message("warning: ", "yellow", text)

    def error(self, text: str) -> None:
        """The one line that explains exit status 2."""
        self._message("moeinspect: error: ", "bold red", text)

    def next_command(self, command: str) -> None:
        """What to run next, ready to paste."""
        if not self.quiet:
            self._message("Next: ", "dim", command)

    @contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Shows on stderr what is going on while the block runs, if somebody watches."""
        if self.quiet or not is_terminal(self.stderr):
            yield
            return
        from moeinspect.progress import terminal_spinner

        with terminal_spinner(self.stderr, what, color=self.color(self.stderr)):
            yield

    @contextmanager
    def progress(self, label: str, total: int) -> Iterator[ProgressBar]:
        """A bar over `total` requests on stderr while the block runs, if somebody watches."""
        if self.quiet or not is_terminal(self.stderr):
            yield _SilentBar()
            return
        from moeinspect.progress import terminal_bar  # rich starts slowly: only when somebody watches

        with terminal_bar(self.stderr, label, total, color=self.color(self.stderr)) as bar:
            yield bar

    def _message(self, prefix: str, style: str, text: str) -> None:
        if prefix and self.color(self.stderr):
            from rich.style import Style

            prefix = Style.parse(style).render(prefix)
        with suppress(OSError):  # nobody reads the messages: that changes no verdict
            self.stderr.write(f"{prefix}{printable(text)}\n")
            self.stderr.flush()

    def discard_stdout(self) -> None:
        """Points the file descriptor at nothing, so that the interpreter's last flush cannot fail."""
        with suppress(OSError, ValueError, io.UnsupportedOperation):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.stdout.fileno())
            os.close(null)


def is_terminal(stream: TextIO) -> bool:
    """Whether a person sees this stream."""
    return not stream.closed and stream.isatty()
