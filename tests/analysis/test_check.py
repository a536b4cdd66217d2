import numpy as np
from analysis.tracefactory import make_facts, make_record, make_records, make_trace

from moeinspect.analysis.check import check_report
from moeinspect.analysis.rules import check_trace
from moeinspect.analysis.summary import summarize

FACTS = make_facts(layers=3, experts=16, top_k=4)


def faulty():
    records = make_records(FACTS, 2, seed=4)
    records[1].expert_ids[:5] = 0
    records[0].expert_ids[7, 1] = [3, 3, 1, 2]
    return make_trace(records, FACTS, path="faulty.h5")


def test_a_healthy_trace_is_clean_and_counted():
    report = check_report([make_trace(make_records(FACTS, 2), FACTS)])
    assert (report.command, report.verdict, report.findings) == ("check-duplicates", "clean", ())
    assert report.diagnoses == ()
    assert report.counts == {
        "rows_checked": 78,
        "cells_checked": 234,
        "cells_flagged": 0,
        "rows_missing": 0,
        "rows_surplus": 0,
    }


def test_findings_carry_the_place_of_their_trace_and_counts_are_summed():
    clean = make_trace(make_records(FACTS, 2), FACTS, path="clean.h5")
    report = check_report([clean, faulty(), faulty()])
    assert report.verdict == "findings"
    assert {finding.input for finding in report.findings if finding.severity != "note"} == {1, 2}
    assert report.counts["rows_checked"] == 3 * 78
    assert report.counts["cells_flagged"] == 2 * (15 + 1)
    assert [summary.path for summary in report.inputs] == ["clean.h5", "faulty.h5", "faulty.h5"]


def test_errors_come_first_and_in_the_order_of_requests_and_rows():
    found = [(f.request, f.rule) for f in check_report([faulty()]).findings]
    assert found[:2] == [("r0", "duplicate-experts"), ("r1", "zero-rows")]


def test_a_trace_in_which_nothing_had_ended_is_clean_with_a_note():
    report = check_report([make_trace([], FACTS, notes=("the run did not end cleanly",))])
    assert report.verdict == "clean"
    assert [(f.rule, f.severity) for f in report.findings] == [
        ("trace-note", "note"),
        ("no-requests", "note"),
    ]
    assert "did not end" in report.findings[0].message


def test_notes_do_not_change_the_verdict():
    facts = make_facts(layers=2, experts=4, top_k=1)
    report = check_report([make_trace(make_records(facts, 2), facts)])
    assert report.verdict == "clean"
    assert [f.severity for f in report.findings] == ["note"]
    assert check_trace(make_trace(make_records(facts, 2), facts)).notes == (report.findings[0].message,)


def test_injected_faults_are_never_read():
    trace = faulty()
    told = make_trace(make_records(FACTS, 2), FACTS, run={"injected_faults": ("skip-finalize-prefill",)})
    assert check_report([told]).verdict == "clean"
    blamed = make_trace([], FACTS, run={"injected_faults": ("no-merge",)})
    assert check_report([blamed]).verdict == "clean"
    assert check_report([trace]).verdict == "findings"


def test_evidence_is_plain_data():
    records = make_records(FACTS, 4)
    records[0].expert_ids[3:12] = records[0].expert_ids[3]
    records[1].expert_ids[3:12] = records[2].expert_ids[5:14]
    records[2].expert_ids[20:26] = np.arange(4)
    records[3].expert_ids[2, 1, 1] = 77
    found = check_report([make_trace(records, FACTS)]).findings
    rules = {"repeated-rows", "stale-rows", "filler-rows", "id-out-of-range", "less-evidence"}
    assert {f.rule for f in found} == rules
    assert all(is_plain(dict(f.evidence)) and type(f.count) is int for f in found)
    assert all(type(x) is int for f in found for x in (*(f.rows or ()), *f.layers))


def is_plain(value):
    if isinstance(value, dict):
        return all(type(key) is str and is_plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(is_plain, value))
    return type(value) in (int, float, str, bool)


def test_a_summary_names_the_facts_of_a_trace():
    facts = make_facts(layers=5, experts=16, top_k=4, layer_axis="all", moe_layers=[1, 2, 4])
    record = make_record("a", range(9), range(4), facts)
    summary = summarize(make_trace([record], facts, path="x.h5", run={"engine": "vllm", "complete": False}))
    assert (summary.path, summary.engine, summary.complete) == ("x.h5", "vllm", False)
    assert (summary.requests, summary.rows, summary.layers) == (1, 12, 3)
    assert (summary.top_k, summary.num_experts) == (4, 16)
