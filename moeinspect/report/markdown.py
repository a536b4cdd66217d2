"""Markdown for a person at a terminal: plainer than rich's own layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement, TableElement
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from moeinspect.report.drawing import drawn

MAX_WIDTH = 100
"""Columns of running text: longer lines are hard to read."""

_STYLES = {
    "markdown.code": "cyan",
    "markdown.h1": "bold magenta",
    "markdown.h2": "bold",
    "markdown.strong": "bold",
}


def render_markdown(pages: Sequence[str], *, color: bool, width: int) -> str:
    """Pages of Markdown, a line between them."""
    parts: list[RenderableType] = []
    for text in pages:
        parts += [Rule(style="dim")] * bool(parts) + [_Page(text, hyperlinks=False)]
    return drawn(parts, color=color, width=min(width, MAX_WIDTH), styles=_STYLES)


def render_groups(groups: Mapping[str, Sequence[tuple[str, str]]], *, color: bool, width: int) -> str:
    """Names with what they are, in columns under the headings of their groups."""
    longest = max((len(name) for entries in groups.values() for name, _ in entries), default=0)
    parts = [
        Group(Text(heading, "bold"), Padding(_table(entries, longest), (0, 0, 0, 2)))
        for heading, entries in groups.items()
        if entries
    ]
    return drawn(parts, color=color, width=width)


def _table(entries: Sequence[tuple[str, str]], longest: int) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(min_width=longest, no_wrap=True)
    table.add_column()
    for name, title in entries:
        table.add_row(Text(name, "magenta"), Text(title))
    return table


class _Heading(Heading):
    """At the left and without a frame."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _Code(CodeBlock):
    """Indented, without a background; commands stand out from what they print."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = Text(overflow="fold")
        for line in str(self.text).rstrip().split("\n"):
            code.append(f"{line}\n", "bold" if line.startswith("$ ") else "dim")
        code.rstrip()
        yield Padding(code, (0, 0, 0, 2))


class _Table(TableElement):
    """Breaks words that do not fit, where rich cuts them."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for part in super().__rich_console__(console, options):
            if isinstance(part, Table):
                for column in part.columns:
                    column.overflow = "fold"
            yield part


class _Page(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = Markdown.elements | {
        "heading_open": _Heading,
        "fence": _Code,
        "code_block": _Code,
        "table_open": _Table,
    }
