"""Traces of unusual make: the rules must give the same answers, and never stumble."""

from dataclasses import replace

import numpy as np
from analysis.rules.shorthand import findings, places
from analysis.tracefactory import make_facts, make_records, make_trace

from moeinspect.analysis.rules import check_trace
from moeinspect.trace.schema import Trace

FACTS = make_facts(layers=3, experts=16, top_k=4)


def reordered(trace: Trace, order: list[int]) -> Trace:
    """The same requests listed in another order than their rows and tokens stand in."""
    columns = {name: getattr(trace.requests, name)[order] for name in trace.requests.__slots__}
    return replace(trace, requests=type(trace.requests)(**columns))


def spoiled() -> Trace:
    records = make_records(FACTS, 4)
    records[0].expert_ids[:24] = 0
    records[1].expert_ids[3:9] = records[1].expert_ids[3]
    records[2].expert_ids[5:12] = records[3].expert_ids[8:15]
    records[3].expert_ids[30, 1] = [2, 2, 3, 4]
    return make_trace(records, FACTS)


def test_the_order_of_requests_does_not_matter():
    trace = spoiled()
    found = {(f.rule, f.request, f.rows, f.layers) for f in findings(trace)}
    assert len(found) == 5
    assert {(f.rule, f.request, f.rows, f.layers) for f in findings(reordered(trace, [2, 0, 3, 1]))} == found


def test_rows_of_no_request_are_not_checked():
    trace = spoiled()
    kept = reordered(trace, [1, 3])
    assert check_trace(kept).counts["rows_checked"] == 78
    assert {f.request for f in findings(kept)} == {"r1", "r3"}
    assert {f.rule for f in findings(kept)} == {"repeated-rows", "duplicate-experts"}


def test_a_trace_without_requests_or_rows_is_clean():
    assert check_trace(make_trace([], FACTS)).findings == ()
    one_token = make_records(FACTS, 2, prompt_len=1, output_len=1)
    for record in one_token:
        assert len(record.expert_ids) == 1
    assert not findings(make_trace(one_token, FACTS))


def test_a_model_without_moe_layers_is_clean():
    facts = make_facts(layers=3, layer_axis="all", moe_layers=[])
    trace = make_trace(make_records(facts, 2), facts)
    result = check_trace(trace)
    assert [f.severity for f in result.findings] == ["note"]
    assert result.counts["cells_checked"] == 0


def test_a_model_whose_moe_layers_are_all_exempt_is_clean():
    facts = make_facts(layers=3, exempt=[0, 1, 2])
    records = make_records(facts, 2)
    for record in records:
        record.expert_ids[:] = 0
    assert not findings(make_trace(records, facts))


def test_a_top_k_of_all_experts_in_sorted_order_is_clean():
    facts = make_facts(layers=3, experts=4, top_k=4)
    records = make_records(facts, 6)
    for record in records:
        record.expert_ids[:] = np.arange(4)
    assert not findings(make_trace(records, facts, run={"slot_order": "sorted"}))


def test_signed_ids_with_negative_values_are_read():
    trace = make_trace(make_records(FACTS, 2), FACTS)
    ids = trace.rows.expert_ids.astype(np.int32)
    ids[4, 1, 2] = -1
    ids[6, 2, 0] = 16
    trace = replace(trace, rows=replace(trace.rows, expert_ids=ids))
    assert places(trace, "partial-sentinel") == [("r0", (4, 5), (1,))]
    assert places(trace, "id-out-of-range") == [("r0", (6, 7), (2,))]


def test_the_same_trace_gives_the_same_findings_each_time():
    trace = spoiled()
    assert check_trace(trace) == check_trace(trace)
