"""`moeinspect disagg-sim`: a disaggregated run, its timeline and its verdict in one go."""

from __future__ import annotations

from moeinspect.commands._binding import Invocation, bind
from moeinspect.commands._choices import Format
from moeinspect.commands._options import CommonOptions, Model
from moeinspect.commands._run_options import LaterRunOptions, RunOptions
from moeinspect.errors import UsageError
from moeinspect.exit_status import ExitStatus


@bind
def disagg_sim(
    call: Invocation,
    run: RunOptions,
    common: CommonOptions,
    later: LaterRunOptions,
    model: Model = "builtin:tiny",
) -> ExitStatus:
    """Run prefill and decode as processes of their own and judge it.

    Writes a trace, draws when what ran, and compares it with a target-only run.
    """
    from moeinspect.commands._baseline import made_baseline
    from moeinspect.commands._next import after_diff
    from moeinspect.commands._plan import RunArguments, plan_run
    from moeinspect.commands._report import exit_status, render_for
    from moeinspect.commands._run import record
    from moeinspect.commands._summary import list_faults, render_summary

    if run.list_faults:
        call.console.result(list_faults(common.format))
        return ExitStatus.OK
    _refuse_contradictions(call, run)
    plan = plan_run(
        RunArguments(model, run, later, common), call, label="disagg-sim", suffix="-disagg", disagg=True
    )
    summary = record(plan, call.console)
    text = common.format is Format.TEXT
    (call.console.result if text else call.console.note)(render_summary(summary, Format.TEXT))

    from moeinspect.analysis.bisect.worth import worth_bisecting
    from moeinspect.analysis.compare import diff_report
    from moeinspect.report.timeline import render_timeline
    from moeinspect.trace.reader import read_trace

    trace = read_trace(summary.output)
    if text:
        call.console.result(
            render_timeline(
                trace, color=call.console.color(call.console.stdout), width=call.console.result_width
            )
        )
    with made_baseline(trace, None, False, call.console) as baseline:
        report = diff_report(trace, baseline)
        call.console.result(render_for(report, common.format, call.console))
    status = exit_status(report)
    if text:
        in_doubt = worth_bisecting(trace, report)
        clean = status is ExitStatus.OK
        call.console.next_command(after_diff(summary.output, None, clean=clean, in_doubt=in_doubt))
    return status


def _refuse_contradictions(call: Invocation, run: RunOptions) -> None:
    if "disagg" in call.explicit and not run.disagg:
        raise UsageError("disagg-sim and --no-disagg contradict each other", "use capture --no-disagg")
    if run.target_only:
        raise UsageError("disagg-sim and --target-only contradict each other", "use capture --target-only")
