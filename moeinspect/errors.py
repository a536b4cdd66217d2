"""Errors that a user can act on. Each is printed as one line by `cli.main`, never as a traceback."""

from moeinspect.exit_status import ExitStatus


class MoeinspectError(Exception):
    """Trouble that ends the command: what failed, where, and what to do next, on one line.

    `message` names what failed and in which file or option; `hint` says what to do next.
    """

    exit_status = ExitStatus.TROUBLE

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = " ".join(message.split())
        self.hint = " ".join(hint.split())
        super().__init__(f"{self.message}; {self.hint}" if self.hint else self.message)


class UsageError(MoeinspectError):
    """An option or a combination of options that cannot be honoured."""


class InputError(MoeinspectError):
    """A file that the user named is missing, damaged or not what it should be."""


class OutputError(MoeinspectError):
    """An output cannot be written: it exists, its folder is read-only, the disk is full."""


class EngineError(MoeinspectError):
    """The runtime or an engine failed while it ran."""


class WorkerLostError(EngineError):
    """A worker process ended, and an interrupt that follows is a consequence of that, not the user's wish."""
