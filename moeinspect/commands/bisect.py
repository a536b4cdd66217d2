"""`moeinspect bisect`: which switches of a run bring the difference that `diff` sees."""

from __future__ import annotations

from typing import Annotated

from moeinspect.commands._binding import Invocation, bind
from moeinspect.commands._choices import Format
from moeinspect.commands._declare import COMPARING, option, within
from moeinspect.commands._options import CommonOptions, TraceFile
from moeinspect.commands._report import check_report_output, write_result
from moeinspect.exit_status import ExitStatus


@bind
def bisect(
    call: Invocation,
    trace: TraceFile,
    common: CommonOptions,
    max_runs: Annotated[
        int,
        option(
            "--max-runs",
            panel=COMPARING,
            metavar="N",
            callback=within(1, 10_000),
            help="Most runs, repetitions included and the baseline not.",
        ),
    ] = 40,
) -> ExitStatus:
    """Find the switches that bring a difference.

    Runs the requests of a trace again with fewer and fewer of the switches by which it differs from
    target-only, and names the smallest sets under which the routed experts still differ.
    """
    check_report_output(common, trace)
    from moeinspect.commands._bisecting import bisect_trace
    from moeinspect.commands._next import after_bisect
    from moeinspect.report.bisection import render_bisection
    from moeinspect.trace.reader import read_trace

    found = bisect_trace(read_trace(trace), max_runs, call.console)
    shown = common.output is None
    text = render_bisection(
        found,
        common.format.value,
        color=shown and call.console.color(call.console.stdout),
        width=call.console.result_width if shown else None,
    )
    write_result(text, common, call.console)
    if common.format is Format.TEXT:
        call.console.next_command(after_bisect(trace, found.causes))
    return ExitStatus.OK if found.outcome == "clean" else ExitStatus.FINDINGS
