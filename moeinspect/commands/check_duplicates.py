"""`moeinspect check-duplicates`: the rules that need one trace only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moeinspect.commands._binding import Invocation, bind
from moeinspect.commands._choices import Format
from moeinspect.commands._later import refuse_later_facts
from moeinspect.commands._next import diff_command
from moeinspect.commands._options import CommonOptions, ModelFactsOptions
from moeinspect.commands._report import check_report_output, hand_over
from moeinspect.exit_status import ExitStatus


@bind
def check_duplicates(
    call: Invocation,
    traces: Annotated[list[Path], typer.Argument(metavar="TRACE", help="Trace files.", show_default=False)],
    common: CommonOptions,
    facts: ModelFactsOptions,
) -> ExitStatus:
    """Check traces for what no healthy router gives.

    Zeros, duplicates, stale and repeated rows, missing rows: without a model and without a second run.
    """
    refuse_later_facts(facts)
    check_report_output(common, *traces)
    from moeinspect.analysis.check import check_report
    from moeinspect.trace.reader import read_trace

    read = [read_trace(path) for path in traces]
    status = hand_over(check_report(read), common, call.console)
    if common.format is Format.TEXT and len(read) == 1 and read[0].run.engine == "local" and read[0].requests:
        call.console.next_command(diff_command(traces[0]))
    return status
