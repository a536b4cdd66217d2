"""`moeinspect capture`: run a model and record which experts its routers chose."""

from __future__ import annotations

from moeinspect.commands._binding import Invocation, bind
from moeinspect.commands._choices import Format
from moeinspect.commands._options import CommonOptions, Model
from moeinspect.commands._run_options import LaterRunOptions, RunOptions
from moeinspect.exit_status import ExitStatus


@bind
def capture(
    call: Invocation,
    run: RunOptions,
    common: CommonOptions,
    later: LaterRunOptions,
    model: Model = "builtin:tiny",
) -> ExitStatus:
    """Run a model and record its routed experts.

    Writes a trace (HDF5) with the experts of every token at every MoE layer. Without options it runs the
    embedded model on the built-in prompts.
    """
    from moeinspect.commands._next import diff_command
    from moeinspect.commands._plan import RunArguments, plan_run
    from moeinspect.commands._run import record
    from moeinspect.commands._summary import list_faults, render_summary

    if run.list_faults:
        call.console.result(list_faults(common.format))
        return ExitStatus.OK
    plan = plan_run(RunArguments(model, run, later, common), call, label="capture")
    summary = record(plan, call.console)
    call.console.result(render_summary(summary, common.format))
    if common.format is not Format.JSON:
        call.console.next_command(diff_command(summary.output))
    return ExitStatus.OK
