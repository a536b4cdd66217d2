"""The runs of `bisect`: the same requests and the same engine with some of its switches, each compared."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from moeinspect.analysis.bisect.bisection import Trial, cells_differ
from moeinspect.analysis.bisect.runs import Switches
from moeinspect.analysis.compare import diff_report
from moeinspect.analysis.findings import Report
from moeinspect.commands._baseline import made_baseline
from moeinspect.commands._run import Run, record
from moeinspect.console import Console
from moeinspect.report.words import counted
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.records import PromptRequest
from moeinspect.runtime.switches import with_only
from moeinspect.trace.reader import read_trace
from moeinspect.trace.schema import Trace

if TYPE_CHECKING:
    from moeinspect.runtime.engine import LocalRuntime


class Baselines:
    """The target-only run that traces are compared with: made once, and again only for another question.

    Where clients go away or weights change, how far a request got under which weights depends on timing and
    on the switches; a trace with other lengths, or with several weight versions, gets a baseline of its own.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._made: tuple[set[tuple[str, int, int]], Trace] | None = None

    def compare(self, trace: Trace) -> Report:
        """The report of `diff` on `trace`.

        Raises:
            InputError: no baseline can be made, or there is nothing to compare.
        """
        if len(trace.weight_versions) > 1:
            with made_baseline(trace, None, False, self._console) as baseline:
                return diff_report(trace, baseline)
        if self._made is None or self._made[0] != _lengths(trace):
            with made_baseline(trace, None, False, self._console) as baseline:
                self._made = _lengths(trace), baseline
        return diff_report(trace, self._made[1])


def _lengths(trace: Trace) -> set[tuple[str, int, int]]:
    requests = trace.requests
    return set(zip(requests.id.tolist(), requests.sample.tolist(), requests.output_len.tolist(), strict=True))


@dataclass(slots=True)
class Runner:
    """Runs the requests of `trace` again with sets of switches; `trials` are the runs so far.

    `config` is the run as recorded, its faults included: they are part of the engine that is run again, and
    nothing here or after looks at them. `order` is that of the switches in words. `with_builtin_requests` are
    the sets of switches with which a run that is given no prompts has these requests.
    """

    trace: Trace
    config: RunConfig
    requests: Sequence[PromptRequest]
    order: Sequence[str]
    baselines: Baselines
    console: Console
    trials: list[Trial] = field(default_factory=list)
    with_builtin_requests: set[Switches] = field(default_factory=set)

    def report(self, switches: Switches) -> Report:
        """Runs with `switches` alone, and compares the outcome with target-only.

        Raises:
            MoeinspectError: the run failed.
        """
        names = tuple(name for name in self.order if name in switches)
        words = ", ".join(name.replace("_", "-") for name in names) or "no switch"
        again = any(one.switches == names for one in self.trials)
        start = time.monotonic()
        with TemporaryDirectory(prefix="moeinspect-") as folder:
            run = Run(
                label=f"run {len(self.trials) + 1}: {words}" + (", again" if again else ""),
                config=with_only(self.config, switches),
                output=Path(folder) / "again.h5",
                force=False,
                make_requests=lambda runtime: self._requests_of(runtime, switches),
                baseline_of=self.trace.path,
                expected_fingerprint=self.trace.model.fingerprint,
                temporary=True,
            )
            record(run, self.console)
            report = self.baselines.compare(read_trace(run.output))
        trial = Trial(names, _named(report, self.trace.path), time.monotonic() - start, again)
        self.trials.append(trial)
        self.console.note(f"{run.label}: {_outcome(report)} ({trial.seconds:.1f} s)")
        return trial.report

    def _requests_of(self, runtime: LocalRuntime, switches: Switches) -> Sequence[PromptRequest]:
        if list(self.requests) == runtime.default_requests():
            self.with_builtin_requests.add(switches)
        return self.requests


def _named(report: Report, path: str) -> Report:
    """The report with a name in place of that of a file that is gone."""
    ours, *others = report.inputs
    return replace(report, inputs=(replace(ours, path=f"({path}, run again)"), *others))


def _outcome(report: Report) -> str:
    rows = counted(report.counts["rows_compared"], "row")
    if not report.differs:
        return f"{report.verdict}, {rows}"
    cause = f", {report.diagnoses[0].cause}" if report.diagnoses else ""
    return f"{report.verdict}, {rows}, {counted(cells_differ(report), 'cell')} differ{cause}"
