"""The exact next command, ready to paste."""

from __future__ import annotations

import shlex
from pathlib import Path


def diff_command(*paths: str | Path) -> str:
    """`moeinspect diff` on these files."""
    return _command("diff", paths)


def check_command(*paths: str | Path) -> str:
    """`moeinspect check-duplicates` on these files."""
    return _command("check-duplicates", paths)


def _command(name: str, paths: tuple[str | Path, ...]) -> str:
    """A file whose name begins with a dash is written so that it is no option."""
    shown = (f"./{path}" if str(path).startswith("-") else str(path) for path in paths)
    return shlex.join(["moeinspect", name, *shown])
