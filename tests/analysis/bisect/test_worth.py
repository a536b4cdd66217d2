"""A bisection is proposed where it can run and would tell something new."""

import pytest
from analysis.tracefactory import make_facts, make_records, make_trace

from moeinspect.analysis.bisect.worth import worth_bisecting
from moeinspect.analysis.findings import Diagnosis, Finding, InputSummary, Report

FACTS = make_facts()


def trace(**changes):
    run = {"engine": "local", "run_config": {"target_only": False}, **changes}
    return make_trace(make_records(FACTS), FACTS, run=run)


def report(*diagnoses, verdict="findings", input=None, severity="error"):
    summary = InputSummary("a.h5", "local", 1, 1, 4, 4, 16, True)
    finding = Finding("set-mismatch", severity, "so", 1, input)
    causes = tuple(Diagnosis(cause, confidence, (), "", "") for cause, confidence in diagnoses)
    return Report("diff", (summary, summary), verdict, {}, (finding,), (), causes)


@pytest.mark.parametrize(
    ("diagnoses", "worth"),
    [
        ([("no-merge|skip-finalize-prefill", 0.9)], True),
        ([("unknown", 0.9)], True),
        ([("no-merge", 0.79)], True),
        ([], True),
        ([("no-merge", 0.8)], False),
        ([("no-merge", 0.95), ("stale-slot", 0.4)], False),
    ],
)
def test_it_is_worth_it_where_the_likeliest_cause_is_in_doubt(diagnoses, worth):
    assert worth_bisecting(trace(), report(*diagnoses)) == worth


@pytest.mark.parametrize(
    "changes",
    [{"engine": "sglang"}, {"run_config": {"target_only": True}}, {"run_config": {}}],
    ids=["another engine", "target-only", "no options"],
)
def test_only_a_run_with_switches_of_the_local_runtime_can_run_again(changes):
    assert not worth_bisecting(trace(**changes), report(("unknown", 0.1)))


def test_what_does_not_differ_or_is_wrong_in_the_baseline_alone_is_not_worth_it():
    assert not worth_bisecting(trace(), report(verdict="numerics", severity="note"))
    assert not worth_bisecting(trace(), report(("unknown", 0.1), input=1))
    assert worth_bisecting(trace(), report(("unknown", 0.1), input=0))
