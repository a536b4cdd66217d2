"""A bisection for a person at a terminal: a table of the runs, then what they name."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from moeinspect.analysis.bisect.bisection import Bisection, SmallestSet, cells_differ
from moeinspect.analysis.findings import Report
from moeinspect.printable import printable
from moeinspect.report.bisection import switch_words, top_cause, verdict_line
from moeinspect.report.drawing import drawn
from moeinspect.report.guide import explain_command
from moeinspect.report.text import STYLES
from moeinspect.report.words import input_line


def render_text(bisection: Bisection, *, color: bool, width: int) -> str:
    """Input, runs, smallest set, and the verdict last."""
    return drawn(_sections(bisection), color=color, width=width)


def _sections(bisection: Bisection) -> Iterator[RenderableType]:
    ours = bisection.recorded.inputs[0]
    head = Text(printable(ours.path), "bold", overflow="fold")
    yield head.append(f"  {input_line(ours)}", "not bold dim")
    yield _runs(bisection)
    for number, one in enumerate(bisection.sets):
        yield Text("Another smallest set" if number else "Smallest set that differs", "bold")
        yield Padding(_smallest(bisection, one), (0, 0, 0, 2))
    for note in bisection.notes:
        yield Text(f"note: {printable(note)}", STYLES["note"])
    style = STYLES["clean" if bisection.outcome == "clean" else "findings"]
    yield Text(printable(verdict_line(bisection)), style)


def _runs(bisection: Bisection) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    table.add_column("run", justify="right", no_wrap=True)
    table.add_column("switches", ratio=3, overflow="fold")
    for title in ("rows", "differ", "s"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("verdict", ratio=2, overflow="fold")
    as_recorded = ("", f"as recorded: {_names(tuple(bisection.options))}")
    table.add_row(*as_recorded, *_figures(bisection.recorded), "", _verdict(bisection.recorded))
    for number, trial in enumerate(bisection.trials, start=1):
        names = _names(trial.switches) + (" (again)" if trial.again else "")
        figures = _figures(trial.report)
        table.add_row(str(number), names, *figures, f"{trial.seconds:.1f}", _verdict(trial.report))
    return table


def _names(switches: tuple[str, ...]) -> str:
    return printable(", ".join(name.replace("_", "-") for name in switches) or "none")


def _figures(report: Report) -> tuple[str, str]:
    return f"{report.counts['rows_compared']:,}", f"{cells_differ(report):,}"


def _verdict(report: Report) -> Text:
    cause = top_cause(report) if report.differs else None
    name = "findings" if report.differs else report.verdict
    return Text(printable(cause.cause if cause else name), STYLES[name].removeprefix("bold "))


def _smallest(bisection: Bisection, one: SmallestSet) -> Table:
    table = Table.grid(padding=(0, 2))
    words = switch_words(bisection, one.switches)
    table.add_row(Text("switches", "dim"), Text(printable(words), "bold", overflow="fold"))
    for place, cause in enumerate(one.causes):
        sure = Text(printable(cause.cause), "bold magenta")
        table.add_row(
            Text("too" if place else "cause", "dim"),
            sure.append(f"  {100 * cause.confidence:.0f} % sure", "not bold dim"),
        )
        for number, reason in enumerate(cause.because):
            table.add_row(Text("" if number else "because", "dim"), Text(printable(reason)))
        if cause.reference:
            table.add_row(Text("seen", "dim"), Text(printable(cause.reference)))
        read = explain_command(cause.cause)
        table.add_row(Text("read", "dim"), Text(printable(read), overflow="fold"))
    if one.command:
        shows = Text(printable(one.command), "green", overflow="fold")
        table.add_row(Text("show", "dim"), shows)
    return table
