"""Traces of real runs of the local runtime, as `capture` writes them and as `diff` makes their baselines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from moeinspect.analysis.findings import Report
from moeinspect.commands._baseline import baseline_config, baseline_requests, made_baseline
from moeinspect.commands._run import Run, record
from moeinspect.console import Console
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.records import PromptRequest
from moeinspect.runtime.resolve import OWN_PROMPTS, resolve
from moeinspect.trace.reader import read_trace
from moeinspect.trace.schema import Trace

_baselines: dict[object, Trace] = {}


def capture(config: RunConfig, prompts: Sequence[PromptRequest] | None = None) -> Trace:
    """Runs the requests (None: those that a run without prompts gets) under `config`, faults and all."""
    resolved, _ = resolve(config, frozenset() if prompts is None else frozenset({OWN_PROMPTS}))
    with TemporaryDirectory() as folder:
        output = Path(folder) / "trace.h5"
        run = Run(
            label="capture",
            config=resolved,
            output=output,
            force=False,
            make_requests=lambda runtime: list(runtime.default_requests() if prompts is None else prompts),
            temporary=True,
        )
        record(run, Console.for_process())
        return replace(read_trace(output), path="trace.h5")


def baseline_of(trace: Trace) -> Trace:
    """The target-only run that `diff` makes for `trace`; made once for traces that ask for the same."""
    console = Console.for_process()
    requests = sorted(baseline_requests(trace, console), key=lambda one: one.key)
    key = (baseline_config(trace), tuple(requests))
    if len(trace.weight_versions) == 1 and key in _baselines:
        return _baselines[key]
    with made_baseline(trace, None, False, console) as baseline:
        if len(trace.weight_versions) == 1:
            _baselines[key] = baseline
        return baseline


def causes(report: Report) -> list[str]:
    """Names of the causes, best first."""
    return [one.cause for one in report.diagnoses]
