import numpy as np
from analysis.rules.shorthand import findings, places
from analysis.tracefactory import make_facts, make_record, make_records, make_trace

from moeinspect.trace.schema import Validity

FACTS = make_facts(layers=3, experts=16, top_k=4)


def record_with(value, where=np.s_[4:6, 1, 2]):
    record = make_record("a", range(9), range(4), FACTS)
    record.expert_ids[where] = value
    return record


def test_an_id_at_or_above_the_number_of_experts_is_out_of_range():
    for value in (16, 200):
        found = findings(make_trace([record_with(value)], FACTS))
        assert [(f.rule, f.rows, f.layers, f.count) for f in found] == [("id-out-of-range", (4, 6), (1,), 2)]
        assert found[0].evidence == {"values": [value], "num_experts": 16}


def test_a_value_that_does_not_fit_is_reported_as_it_was():
    found = findings(make_trace([record_with(70_000), record_with(-7)], FACTS))
    assert [f.rule for f in found] == ["id-out-of-range"] * 2
    assert [f.evidence["values"] for f in found] == [[70_000], [-7]]


def test_no_id_beside_real_ids_is_a_partial_sentinel():
    for value in (-1, 255):
        trace = make_trace([record_with(value)], FACTS)
        assert places(trace, "partial-sentinel") == [("a", (4, 6), (1,))]
        assert len(findings(trace)) == 1


def test_whole_layers_without_ids_in_rows_with_ids_are_a_partial_sentinel():
    trace = make_trace([record_with(-1, np.s_[4:6, 1])], FACTS)
    assert places(trace, "partial-sentinel") == [("a", (4, 6), (1,))]


def test_a_row_without_any_id_that_claims_to_be_real_is_out_of_range():
    trace = make_trace([record_with(-1, np.s_[4:6])], FACTS)
    assert places(trace, "id-out-of-range") == [("a", (4, 6), (0, 1, 2))]
    assert not findings(trace, "partial-sentinel")


def test_a_wrong_id_comes_before_no_id_in_one_cell():
    record = record_with(-1)
    record.expert_ids[4, 1, 0] = 99
    trace = make_trace([record], FACTS)
    assert places(trace, "id-out-of-range") == [("a", (4, 5), (1,))]
    assert places(trace, "partial-sentinel") == [("a", (5, 6), (1,))]


def test_expert_255_of_256_is_an_ordinary_id():
    facts = make_facts(layers=2, experts=256, top_k=2)
    record = make_record("a", range(9), range(4), facts)
    record.expert_ids[3] = [255, 1]
    assert not findings(make_trace([record], facts))
    record.expert_ids[3, 0, 0] = -1
    assert places(make_trace([record], facts), "partial-sentinel") == [("a", (3, 4), (0,))]


def test_a_row_declared_invalid_without_an_odd_value_counts_with_all_its_cells():
    record = make_record("a", range(9), range(4), FACTS)
    record.validity[3] = Validity.INVALID
    assert places(make_trace([record], FACTS), "id-out-of-range") == [("a", (3, 4), (0, 1, 2))]


def test_missing_capture_is_legitimate_in_an_exempt_layer_but_a_wrong_id_is_not():
    facts = make_facts(layers=3, experts=16, top_k=4, exempt=[1])
    records = make_records(facts, 1)
    records[0].expert_ids[:, 1] = -1
    assert not findings(make_trace(records, facts), "partial-sentinel")
    records[0].expert_ids[2, 1, 0] = 77
    assert places(make_trace(records, facts), "id-out-of-range") == [("r0", (2, 3), (1,))]
