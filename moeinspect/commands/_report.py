"""How a command hands over its report: where it is written, and the exit status it stands for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from moeinspect.commands._choices import Format
from moeinspect.commands._options import CommonOptions
from moeinspect.console import Console
from moeinspect.errors import OutputError
from moeinspect.exit_status import ExitStatus

if TYPE_CHECKING:
    from moeinspect.analysis.findings import Report


def check_report_output(common: CommonOptions, *inputs: Path) -> None:
    """Raises OutputError, before any work is done, if the report cannot go where -o says."""
    if common.output is None:
        return
    refuse_input_as_output(common.output, *inputs)
    if common.output.exists() and not common.force:
        raise OutputError(f"{common.output} exists", "use -f to overwrite it, or another -o")


def refuse_input_as_output(output: Path, *inputs: Path) -> None:
    """Raises OutputError if `output` is one of the inputs: -f must never cost a trace."""
    for path in inputs:
        if output.exists() and path.exists() and output.samefile(path):
            raise OutputError(f"{output} is an input of this command", "write to another file")


def hand_over(report: Report, common: CommonOptions, console: Console) -> ExitStatus:
    """Writes the report to stdout, or to the file that -o names, and returns its exit status."""
    if common.output is None:
        text = render_for(report, common.format, console)
    else:
        from moeinspect.report import render

        text = render(report, common.format.value, color=False, width=None)
    write_result(text, common, console)
    return exit_status(report)


def write_result(text: str, common: CommonOptions, console: Console) -> None:
    """Writes what a command was asked for to stdout, or to the file that -o names."""
    if common.output is None:
        console.result(text)
    else:
        _write(common.output, text, common.force)
        console.note(f"Wrote {common.output}")


def render_for(report: Report, format: Format, console: Console) -> str:
    """The report as stdout shows it."""
    from moeinspect.report import render

    return render(report, format.value, color=console.color(console.stdout), width=console.result_width)


def exit_status(report: Report) -> ExitStatus:
    """0 for clean and for numerics, unless they are asked for strictly; 1 for findings."""
    return ExitStatus.FINDINGS if report.differs else ExitStatus.OK


def _write(path: Path, text: str, force: bool) -> None:
    try:
        with path.open("w" if force else "x", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text if text.endswith("\n") else text + "\n")
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}", "try another -o") from error
