"""Every fault that the runtime can commit, by its own name and from the rows alone; healthy runs by none."""

from dataclasses import replace

import pytest
from analysis.localtraces import baseline_of, capture, causes

from moeinspect.analysis.check import check_report
from moeinspect.analysis.compare import diff_report
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.faults import FAULTS

MODEL = "builtin:random"
DRAFT = "builtin:random-draft"

ONE_TRACE_IS_ENOUGH = {
    "skip-finalize-prefill",
    "no-merge",
    "read-early",
    "surplus-after-stop",
    "prefill-only-short",
    "kernel-uncaptured",
    "init-order",
    "hash-layer-uncaptured",
    "physical-ids",
    "shared-expert-column",
    "tp-shard",
    "pp-stage",
    "graph-static-rows",
    "verify-dropped",
    "nan-logits",
}
"""Faults that `check-duplicates` finds with default traffic."""


def without_names(trace):
    return replace(trace, run=replace(trace.run, injected_faults=()))


@pytest.mark.quick(8)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_with_its_own_traffic_comes_first_and_its_name_is_not_read(fault):
    trace = capture(RunConfig(model=MODEL, faults=(fault,)))
    assert trace.run.injected_faults == (fault,)
    baseline = baseline_of(trace)
    report = diff_report(trace, baseline)
    assert report.verdict == "findings"
    assert fault in causes(report)[0].split("|"), report.diagnoses
    assert len(causes(report)[0].split("|")) <= 4
    assert diff_report(without_names(trace), baseline) == report
    check = check_report([trace])
    assert "less-evidence" not in {one.rule for one in (*report.findings, *check.findings)}
    assert check_report([without_names(trace)]) == check
    if fault in ONE_TRACE_IS_ENOUGH or causes(check):
        assert fault in causes(check)[0].split("|"), check.diagnoses


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "options",
    [
        {"prefix_cache": True, "traffic": ("shared-prefixes",), "num_kv_slots": 160, "host_kv_slots": 512},
        {"draft": DRAFT, "num_kv_slots": 160, "max_running_requests": 4},
        {"draft": "ngram", "graph": True, "chunked_prefill_size": 20, "traffic": ("stops", "chunk-seams")},
        {"traffic": ("mixed-opt-in", "prefill-only"), "disagg": True, "prefill_workers": 2},
        {"backend": "bypass", "draft": DRAFT, "graph": True},
    ],
)
def test_a_healthy_run_with_everything_on_is_clean(options):
    trace = capture(RunConfig(model=MODEL, **options))
    report = diff_report(trace, baseline_of(trace))
    assert (report.verdict, causes(report)) == ("clean", [])
