"""Exit statuses of every command; other people's scripts rely on them."""

from enum import IntEnum


class ExitStatus(IntEnum):
    """What a command says with its exit status."""

    OK = 0
    """Clean, same, or numerics only."""
    FINDINGS = 1
    """Findings, or differences."""
    TROUBLE = 2
    """Bad option, unreadable file, failed engine, nothing to compare."""
    INTERRUPTED = 130
    """Ended by Ctrl-C."""
