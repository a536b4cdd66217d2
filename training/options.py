"""Options that the commands share."""

from __future__ import annotations

import argparse
from pathlib import Path

DEFAULT_DATA = Path("training-data")
PAIR = Path(__file__).resolve().parent.parent / "moeinspect" / "runtime" / "models" / "pair"
"""Where the package keeps the exported pair."""


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser that knows `--data` and shows the first line of a module's docstring."""
    result = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    result.add_argument("--data", type=Path, default=DEFAULT_DATA, help="folder of all results (%(default)s)")
    return result


def add_training_options(options: argparse.ArgumentParser, *, seed: int) -> None:
    """Adds what every training step takes."""
    options.add_argument("--size", choices=("full", "toy"), default="full", help="toy: seconds on a CPU")
    options.add_argument("--steps", type=int, help="optimizer steps (the size's own)")
    options.add_argument("--rate", type=float, help="peak learning rate (the size's own)")
    options.add_argument("--seed", type=int, default=seed)
    options.add_argument("--device", default="cuda")
    options.add_argument(
        "--compile",
        choices=("off", "on", "graphs"),
        default="on",
        help="compile the model; graphs: replay it as CUDA graphs as well",
    )
