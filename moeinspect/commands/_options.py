"""Options of every command and of the single ones; `_binding.bind` turns the fields into options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from moeinspect.commands._choices import Color, Format
from moeinspect.commands._declare import COMPARING, LATER, OUTPUT, option, print_version, within
from moeinspect.console import Console

Version = Annotated[
    bool,
    option(
        "--version",
        panel=OUTPUT,
        help="Print the version and exit.",
        is_eager=True,
        callback=print_version,
        show_default=False,
    ),
]
Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A Hugging Face checkpoint folder, or builtin:NAME: tiny, random, random-shared, random-hash.",
    ),
]
TraceFile = Annotated[Path, typer.Argument(metavar="TRACE", help="A trace file.", show_default=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonOptions:
    """What every command takes."""

    output: Annotated[
        Path | None,
        option("-o", "--output", panel=OUTPUT, metavar="FILE", help="Where to write the result."),
    ] = None
    force: Annotated[
        bool, option("-f", "--force", panel=OUTPUT, help="Overwrite existing output.", show_default=False)
    ] = False
    format: Annotated[Format, option("--format", panel=OUTPUT, help="Format of the result.")] = Format.TEXT
    color: Annotated[
        Color, option("--color", panel=OUTPUT, help="Colour; auto also heeds NO_COLOR and FORCE_COLOR.")
    ] = Color.AUTO
    quiet: Annotated[
        bool,
        option("-q", "--quiet", panel=OUTPUT, help="No messages and no progress.", show_default=False),
    ] = False
    verbose: Annotated[
        int, option("-v", "--verbose", panel=OUTPUT, count=True, help="More messages.", show_default=False)
    ] = 0
    version: Version = False

    def configure(self, console: Console) -> None:
        """Tells the console what the user wants to see."""
        console.configure(color=self.color.value, quiet=self.quiet, verbosity=self.verbose)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFactsOptions:
    """Facts of the model for traces that do not carry them; of a later version."""

    model: Annotated[
        str | None,
        option(
            "--model",
            panel=LATER,
            metavar="PATH",
            help="Checkpoint folder or config.json with the model's facts.",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """How `diff` compares."""

    keep_baseline: Annotated[
        Path | None,
        option("--keep-baseline", panel=COMPARING, metavar="FILE", help="Keep the baseline that diff makes."),
    ] = None
    noise_floor: Annotated[
        Path | None,
        option(
            "--noise-floor",
            panel=COMPARING,
            metavar="TRACE2",
            help="The baseline's configuration run once more: what differs no more than that is numerics.",
        ),
    ] = None
    max_mismatch: Annotated[
        float,
        option(
            "--max-mismatch",
            panel=COMPARING,
            metavar="SHARE",
            callback=within(0, 1),
            help="Share of cells that may differ before it is a finding.",
        ),
    ] = 0.0
    strict: Annotated[
        bool,
        option("--strict", panel=COMPARING, help="Numerics count as differences.", show_default=False),
    ] = False
