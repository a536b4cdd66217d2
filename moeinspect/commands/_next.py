"""The exact next command, ready to paste."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from moeinspect.report.guide import explain_command

if TYPE_CHECKING:
    from moeinspect.analysis.findings import Diagnosis

_BISECTED = re.compile(r"-bisected\d*$")


def diff_command(*arguments: str | Path) -> str:
    """`moeinspect diff` on these files."""
    return shlex.join(["moeinspect", "diff", *map(_argument, arguments)])


def fault_command(name: str) -> str:
    """A run that commits the fault `name`."""
    return shlex.join(["moeinspect", "capture", "--fault", name, "-o", f"{name}.h5"])


def bisect_command(trace: Path) -> str:
    """The search for the switches that bring what `diff` on this file sees."""
    return shlex.join(["moeinspect", "bisect", _argument(trace)])


def bisected_name(trace: Path, number: int) -> Path:
    """The trace, in the current folder, that the command of a bisection's set makes; sets count from 1."""
    return Path(f"{_BISECTED.sub('', trace.stem)}-bisected{number if number > 1 else ''}.h5")


def after_diff(trace: Path, baseline: Path | None, *, clean: bool, in_doubt: bool = False) -> str:
    """After a comparison with `baseline`, or with one that was made and is gone (None).

    What differs is told in full by the JSON report, and where its cause is `in_doubt`, by the switches that
    bring it; those of a run that a bisection named are known. A baseline that showed no difference is worth
    keeping, since the next comparison then needs no model.
    """
    if clean and baseline is None:
        return diff_command(trace, "--keep-baseline", trace.with_name(f"{trace.stem}-baseline{trace.suffix}"))
    if in_doubt and not _BISECTED.search(trace.stem):
        return bisect_command(trace)
    return diff_command(trace, *([] if baseline is None else [baseline]), "--format", "json")


def after_bisect(trace: Path, causes: Sequence[Diagnosis]) -> str:
    """The pages of the causes that a bisection came to, if there are any."""
    names = dict.fromkeys(name for one in causes for name in one.cause.split("|"))
    return explain_command("|".join(names)) if names else diff_command(trace)


def _argument(argument: str | Path) -> str:
    """A file whose name begins with a dash is written so that it is no option."""
    looks_like_option = isinstance(argument, Path) and str(argument).startswith("-")
    return f"./{argument}" if looks_like_option else str(argument)
