import numpy as np
from analysis.rules.shorthand import findings, notes, places
from analysis.tracefactory import make_facts, make_record, make_records, make_trace

from moeinspect.trace.schema import Validity

FACTS = make_facts(layers=4, experts=16, top_k=4)


def test_zero_prompts_are_zero_rows_exactly_up_to_the_prompt_length():
    records = make_records(FACTS, 5, prompt_len=20, output_len=8)
    for record in records:
        record.expert_ids[:20] = 0
    found = findings(make_trace(records, FACTS))
    assert [(f.rule, f.request, f.rows, f.layers, f.region, f.count) for f in found] == [
        ("zero-rows", f"r{i}", (0, 20), (0, 1, 2, 3), "prompt", 80) for i in range(5)
    ]
    assert all(f.evidence["multiplicity"] == 4 and f.severity == "error" and f.input == 0 for f in found)


def test_a_request_of_zeros_alone_is_zero_layers():
    record = make_record("a", range(9), [3], FACTS)
    record.expert_ids[:] = 0
    found = findings(make_trace([record], FACTS))
    assert [(f.rule, f.rows, f.layers, f.count) for f in found] == [("zero-layers", (0, 9), (0, 1, 2, 3), 36)]


def test_a_layer_that_is_zero_throughout_is_apart_from_other_zero_cells():
    record = make_record("a", range(9), range(4), FACTS)
    record.expert_ids[:, 2] = 0
    record.expert_ids[3:5, 0] = 0
    trace = make_trace([record], FACTS)
    assert places(trace, "zero-layers") == [("a", (0, 12), (2,))]
    assert places(trace, "zero-rows") == [("a", (3, 5), (0,))]
    assert not findings(trace, "duplicate-experts")


def test_runs_break_where_the_layers_change_and_where_a_request_ends():
    a, b = make_record("a", range(9), range(4), FACTS), make_record("b", range(9), range(4), FACTS)
    a.expert_ids[8:, :] = 0
    a.expert_ids[6:8, 1] = 0
    b.expert_ids[:2, :] = 0
    assert places(make_trace([a, b], FACTS), "zero-rows") == [
        ("a", (6, 8), (1,)),
        ("a", (8, 12), (0, 1, 2, 3)),
        ("b", (0, 2), (0, 1, 2, 3)),
    ]


def test_one_row_that_is_declared_missing_splits_a_run_and_does_not_stop_zero_layers():
    record = make_record("a", range(9), range(4), FACTS)
    record.expert_ids[:, 1] = 0
    record.validity[5] = Validity.MISSING
    assert places(make_trace([record], FACTS), "zero-layers") == [("a", (0, 5), (1,)), ("a", (6, 12), (1,))]


def test_declared_filler_and_missing_rows_are_not_checked():
    record = make_record("a", range(9), range(4), FACTS)
    record.expert_ids[2:8] = 0
    record.validity[2:5], record.validity[5:8] = Validity.FILLER, Validity.MISSING
    trace = make_trace([record], FACTS)
    assert not findings(trace)
    assert {f.evidence["reason"] for f in notes(trace)} == {"declared-filler", "declared-missing"}


def test_dense_layers_are_left_out_whatever_they_hold_and_this_is_said():
    facts = make_facts(layers=4, layer_axis="all", moe_layers=[1, 3])
    trace = make_trace(make_records(facts), facts)
    for value in (facts.sentinel, 0):
        trace.rows.expert_ids[:, [0, 2]] = value
        assert not findings(trace)
        assert [(f.rule, f.layers) for f in notes(trace)] == [("not-checked", (0, 2))]


def test_layers_are_named_by_their_absolute_index_on_either_axis():
    for axis in ("moe", "all"):
        facts = make_facts(layers=6, layer_axis=axis, moe_layers=[1, 3, 4])
        trace = make_trace(make_records(facts, 2), facts)
        place = 2 if axis == "moe" else 4
        trace.rows.expert_ids[:5, place] = 0
        assert places(trace, "zero-rows") == [("r0", (0, 5), (4,))]


def test_exempt_layers_are_left_out_and_this_is_said():
    facts = make_facts(layers=3, exempt=[1])
    records = make_records(facts)
    for record in records:
        record.expert_ids[:, 1] = 0
        record.expert_ids[4, 1] = 7
    trace = make_trace(records, facts)
    assert not findings(trace)
    assert [(f.evidence["reason"], f.layers) for f in notes(trace)] == [("exempt-layers", (1,))]


def test_a_top_1_model_is_not_judged_by_zeros_or_duplicates_and_this_is_said():
    facts = make_facts(layers=2, experts=4, top_k=1)
    records = make_records(facts)
    records[0].expert_ids[:3] = 0
    trace = make_trace(records, facts)
    assert not findings(trace)
    assert [f.evidence["reason"] for f in notes(trace)] == ["top-1"]


def test_expert_0_among_others_is_no_zero_cell():
    record = make_record("a", range(9), range(4), FACTS)
    record.expert_ids[:] = np.arange(4)[::-1]
    assert not findings(make_trace([record], FACTS), "zero-rows")
