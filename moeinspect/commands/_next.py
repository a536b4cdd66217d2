"""The exact next command, ready to paste."""

from __future__ import annotations

import shlex
from pathlib import Path


def diff_command(*paths: str | Path) -> str:
    """`moeinspect diff` on these files."""
    return shlex.join(["moeinspect", "diff", *map(str, paths)])


def check_command(*paths: str | Path) -> str:
    """`moeinspect check-duplicates` on these files."""
    return shlex.join(["moeinspect", "check-duplicates", *map(str, paths)])
