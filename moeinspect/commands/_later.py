"""Options and values that a later version brings: refused by name, never silently ignored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from moeinspect.commands._choices import Engine, Transfer
from moeinspect.commands._options import ModelFactsOptions
from moeinspect.commands._run_options import LaterRunOptions, RunOptions
from moeinspect.errors import UsageError


def refuse_later_run(options: LaterRunOptions) -> None:
    """Raises UsageError if an option of a run was given that this version does not have."""
    refuse_given(
        ("--url", options.url is not None),
        ("--replay", options.replay is not None),
    )
    refuse_values("--engine", options.engine, [Engine.LOCAL])


def refuse_later_values(options: RunOptions) -> None:
    """Raises UsageError if an option of a run has a value that this version does not have."""
    refuse_values("--transfer", options.transfer, [Transfer.SHM, Transfer.GLOO])
    if options.device == "cuda" or options.device.startswith("cuda:"):
        raise _not_built(f"--device {options.device}", "use cpu")
    if options.device != "cpu":
        raise UsageError(f"--device {options.device}: no such device", "use cpu")


def refuse_later_facts(options: ModelFactsOptions) -> None:
    """Raises UsageError if --model was given to `diff` or `check-duplicates`."""
    refuse_given(("--model", options.model is not None))


def refuse_given(*given: tuple[str, Any]) -> None:
    """Raises UsageError for the first option that was given."""
    for option, value in given:
        if value:
            raise _not_built(option, "leave it out")


def refuse_values(option: str, value: str, built: Iterable[str]) -> None:
    """Raises UsageError unless `value` is one that this version has."""
    built = list(built)
    if value not in built:
        raise _not_built(f"{option} {value}", f"use {' or '.join(built)}")


def _not_built(what: str, instead: str) -> UsageError:
    return UsageError(f"{what} is not built yet in this version", instead)
