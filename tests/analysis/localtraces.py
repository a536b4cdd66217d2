"""Traces of real runs of the local runtime, in memory: what `capture` and `diff`'s baseline would write."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from analysis.tracefactory import make_trace

from moeinspect.analysis.compare import diff_report
from moeinspect.analysis.findings import Report
from moeinspect.commands._baseline import baseline_config, baseline_requests
from moeinspect.commands._record import (
    model_facts,
    recorded_config,
    request_record,
    weight_version_names,
)
from moeinspect.console import Console
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.engine import LocalRuntime
from moeinspect.runtime.records import PromptRequest
from moeinspect.runtime.resolve import OWN_PROMPTS, resolve
from moeinspect.trace.schema import Trace


def capture(config: RunConfig, prompts: Sequence[PromptRequest] | None = None) -> Trace:
    """Runs the requests (None: those that a run without prompts gets) under `config`, faults and all."""
    config, _ = resolve(config, frozenset() if prompts is None else frozenset({OWN_PROMPTS}))
    return _run(config, prompts)


@functools.cache
def _baseline(config: RunConfig, prompts: tuple[PromptRequest, ...]) -> Trace:
    return _run(config, prompts)


def baseline_of(trace: Trace) -> Trace:
    """The target-only run that `diff` makes for `trace`; kept for traces that ask for the same."""
    requests = baseline_requests(trace, Console.for_process())
    return _baseline(baseline_config(trace), tuple(sorted(requests, key=lambda one: one.key)))


def diff(config: RunConfig, prompts: Sequence[PromptRequest] | None = None) -> Report:
    """The report of `diff` on a run with its own baseline."""
    trace = capture(config, prompts)
    return diff_report(trace, baseline_of(trace))


def causes(report: Report) -> list[str]:
    """Names of the causes, best first."""
    return [one.cause for one in report.diagnoses]


def _run(config: RunConfig, prompts: Sequence[PromptRequest] | None) -> Trace:
    with LocalRuntime(config) as runtime:
        requests = list(runtime.default_requests() if prompts is None else prompts)
        runtime.check(requests)
        records = [request_record(finished) for finished in runtime.generate(requests)]
        run: dict[str, Any] = {
            "run_config": recorded_config(config, runtime.config, requests),
            "machine_key": runtime.machine_key,
            "deterministic": runtime.config.deterministic,
            "injected_faults": runtime.config.faults,
        }
        return make_trace(
            records,
            model_facts(runtime.model),
            run=run,
            worker_names=tuple(runtime.worker_names),
            weight_versions=weight_version_names(runtime.config),
        )
