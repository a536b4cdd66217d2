"""`moeinspect diff`: compare a trace with a baseline, made on the spot if none is given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moeinspect.commands._binding import Invocation, bind
from moeinspect.commands._choices import Format
from moeinspect.commands._later import refuse_later_facts
from moeinspect.commands._next import after_diff, diff_command
from moeinspect.commands._options import (
    CommonOptions,
    CompareOptions,
    ModelFactsOptions,
    TraceFile,
)
from moeinspect.commands._report import check_report_output, hand_over, refuse_input_as_output
from moeinspect.console import Console
from moeinspect.errors import UsageError
from moeinspect.exit_status import ExitStatus

if TYPE_CHECKING:
    from moeinspect.trace.schema import Trace


@bind
def diff(
    call: Invocation,
    trace: TraceFile,
    compare: CompareOptions,
    common: CommonOptions,
    facts: ModelFactsOptions,
    baseline: Annotated[
        Path | None,
        typer.Argument(
            metavar="BASELINE",
            help="The trace to compare with. Without it: a target-only run of the same requests.",
            show_default=False,
        ),
    ] = None,
) -> ExitStatus:
    """Compare a trace with a baseline.

    Same experts, same weights, same tokens? Without BASELINE a target-only run of the same model and
    requests is made first.
    """
    refuse_later_facts(facts)
    inputs = [path for path in (trace, baseline, compare.noise_floor) if path is not None]
    check_report_output(common, *inputs)
    check_kept_baseline(compare, baseline, inputs, common.output)
    from moeinspect.analysis.bisect.worth import worth_bisecting
    from moeinspect.analysis.compare import diff_report
    from moeinspect.trace.reader import read_trace

    ours = read_trace(trace)
    again = None if compare.noise_floor is None else read_trace(compare.noise_floor)
    with _baseline_of(ours, baseline, compare, common.force, call.console) as theirs:
        report = diff_report(ours, theirs, again, strict=compare.strict, max_mismatch=compare.max_mismatch)
        status = hand_over(report, common, call.console)
    if common.format is Format.TEXT:
        in_doubt = worth_bisecting(ours, report)
        call.console.next_command(_next_command(trace, baseline, compare, status, in_doubt))
    return status


def check_kept_baseline(
    compare: CompareOptions, baseline: Path | None, inputs: list[Path], output: Path | None
) -> None:
    """Raises if --keep-baseline makes no sense beside the other arguments."""
    if compare.keep_baseline is None:
        return
    if baseline is not None:
        raise UsageError("--keep-baseline with a BASELINE: no baseline is made then", "leave one of them out")
    if output is not None and output.resolve() == compare.keep_baseline.resolve():
        raise UsageError(
            f"--keep-baseline and --output are both {output}",
            "give the report another name",
        )
    refuse_input_as_output(compare.keep_baseline, *inputs)


@contextmanager
def _baseline_of(
    trace: Trace, baseline: Path | None, compare: CompareOptions, force: bool, console: Console
) -> Iterator[Trace]:
    from moeinspect.trace.reader import read_trace

    if baseline is not None:
        yield read_trace(baseline)
        return
    from moeinspect.commands._baseline import made_baseline

    with made_baseline(trace, compare.keep_baseline, force, console) as made:
        yield made


def _next_command(
    trace: Path, baseline: Path | None, compare: CompareOptions, status: ExitStatus, in_doubt: bool
) -> str:
    if compare.keep_baseline is not None:
        if in_doubt:
            return after_diff(trace, None, clean=False, in_doubt=True)
        return diff_command(trace, compare.keep_baseline)
    return after_diff(trace, baseline, clean=status is ExitStatus.OK, in_doubt=in_doubt)
