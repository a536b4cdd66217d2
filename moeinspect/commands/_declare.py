"""How options are declared: the sections of the help, checks of numbers, and `option` itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import typer

from moeinspect import __version__

REQUESTS = "Requests"
SCHEDULING = "Scheduling"
DRAFT = "Draft model"
MACHINE = "Model and machine"
RECORDING = "What is recorded"
OUTPUT = "Output"
COMPARING = "Comparing"
GUIDE = "Guide"
DISAGG = "Disaggregation"
PARALLEL = "Ranks and expert placement"
LATER = "Of a later version: refused by name in this one"

MAX_COUNT = 2**31 - 1
"""Largest number that counts something, such as tokens or requests."""


def print_version(asked: bool) -> None:
    """Callback of --version."""
    if asked:
        typer.echo(f"moeinspect {__version__}")
        raise typer.Exit


def within(low: float, high: float = math.inf, *, above: bool = False) -> Callable[[Any], Any]:
    """Callback that refuses numbers outside `low` to `high`, and not-a-number; None is no number.

    `above` leaves `low` itself out. (Ranges of typer's own let nan pass and clutter the help.)
    """
    least = f"{'above' if above else 'at least'} {low}"
    wanted = least if high in (math.inf, MAX_COUNT) else f"{least} and at most {high}"

    def check(value: float | None) -> float | None:
        if value is None or (math.isfinite(value) and low <= value <= high and not (above and value == low)):
            return value
        # A limit that only keeps numbers from overflowing is named to who exceeds it.
        problem = f"at most {high}" if high == MAX_COUNT and value > high else wanted
        raise typer.BadParameter(f"must be {problem}, not {value}")

    return check


def option(*names: str, panel: str, help: str, **settings: Any) -> Any:  # noqa: ANN401  # as typer's
    return typer.Option(*names, rich_help_panel=panel, help=help, **settings)
