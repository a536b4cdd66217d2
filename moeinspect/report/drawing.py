"""What rich draws, as text."""

from __future__ import annotations

import io
from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.theme import Theme

MIN_WIDTH = 40
"""Columns below which nothing is squeezed further."""


def drawn(
    parts: Iterable[RenderableType], *, color: bool, width: int, styles: dict[str, str] | None = None
) -> str:
    """The parts below each other, with an empty line between them and no blanks at the ends of lines.

    Data is taken literally: neither markup nor emoji codes mean anything. `styles` replace rich's by name.
    """
    output = io.StringIO()
    console = Console(
        file=output,
        width=max(width, MIN_WIDTH),
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        legacy_windows=False,
        markup=False,
        highlight=False,
        emoji=False,
        theme=Theme(styles or {}),
    )
    for number, part in enumerate(parts):
        if number:
            console.print()
        console.print(part)
    return "\n".join(line.rstrip() for line in output.getvalue().split("\n"))
