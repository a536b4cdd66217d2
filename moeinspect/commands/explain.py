"""`moeinspect explain`: the page of a cause, a rule or a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from moeinspect.commands._binding import Invocation, bind
from moeinspect.commands._choices import Format
from moeinspect.commands._declare import GUIDE, option
from moeinspect.commands._next import fault_command
from moeinspect.commands._options import CommonOptions
from moeinspect.commands._report import check_report_output, write_result
from moeinspect.console import Console
from moeinspect.errors import UsageError
from moeinspect.exit_status import ExitStatus
from moeinspect.report.guide import explain_command

if TYPE_CHECKING:
    from moeinspect.guide import Page


@bind
def explain(
    call: Invocation,
    common: CommonOptions,
    list_: Annotated[
        bool,
        option("-l", "--list", panel=GUIDE, help="List all names, as without NAME.", show_default=False),
    ] = False,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="A cause, a rule or a verdict as reports name it, a joined cause in quotes: 'a|b'; or an "
            "upstream report: sglang#23885; or words of a symptom or an error message.",
            show_default=False,
        ),
    ] = None,
) -> ExitStatus:
    """Explain a cause, a rule or a verdict.

    What goes wrong, what it looks like, how to confirm it and what mends it. Where several pages fit a
    report or words, they are listed; without NAME all are.
    """
    if list_ and name is not None:
        raise UsageError(f"--list beside {name}: all names or one page", "leave one of them out")
    if common.format is Format.GITHUB:
        raise UsageError("--format github: a page annotates nothing", "use text or json")
    check_report_output(common)
    from moeinspect.analysis.diagnose.catalogue import CAUSES
    from moeinspect.guide import all_pages
    from moeinspect.guide.lookup import look_up

    references = {name: cause.reference for name, cause in CAUSES.items()}
    answer = None if name is None else look_up(name, references)
    pages = all_pages() if answer is None else answer.pages
    as_list = answer is None or not (answer.by_name or len(pages) == 1)
    text = _rendered(pages, references, as_list, common, call.console)
    write_result(text, common, call.console)
    if common.format is Format.TEXT and answer is not None:
        if as_list:
            call.console.next_command(explain_command(pages[0].name))
        elif len(pages) == 1 and pages[0].kind == "fault":
            call.console.next_command(fault_command(pages[0].name))
    return ExitStatus.OK


def _rendered(
    pages: tuple[Page, ...],
    references: Mapping[str, str],
    as_list: bool,
    common: CommonOptions,
    console: Console,
) -> str:
    from moeinspect.report.guide import pages_json, render_index, render_pages

    if common.format is Format.JSON:
        return pages_json(pages, references, with_text=not as_list)
    render = render_index if as_list else render_pages
    if common.output is not None:
        return render(pages, color=False, width=None)
    return render(pages, color=console.color(console.stdout), width=console.result_width)
