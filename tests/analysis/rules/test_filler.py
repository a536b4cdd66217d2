import numpy as np
import pytest
from analysis.rules.shorthand import findings, places, rules_of
from analysis.tracefactory import make_facts, make_records, make_trace

FACTS = make_facts(layers=4, experts=32, top_k=4)
ALL = (0, 1, 2, 3)


def filled(rows, value, facts=FACTS, **options):
    records = make_records(facts, 3, **options)
    records[1].expert_ids[rows] = value
    return make_trace(records, facts)


def running(count: int, start: int, facts=FACTS, per_row: bool = True):
    """Rows of the running pattern: by row, the same in each layer, or over the whole array."""
    M, K, E = len(facts.moe_layers), facts.top_k, facts.num_experts
    if per_row:
        rows = start + K * np.arange(count)[:, None] + np.arange(K)
        return np.broadcast_to((rows % E)[:, None, :], (count, M, K))
    return ((start + np.arange(count * M * K)) % E).reshape(count, M, K)


def test_four_rows_of_arange_are_filler_and_three_are_not():
    assert places(filled(slice(5, 9), np.arange(4)), "filler-rows") == [("r1", (5, 9), ALL)]
    assert not findings(filled(slice(5, 8), np.arange(4)))


def test_the_evidence_names_the_pattern_and_the_chance():
    found = findings(filled(slice(5, 9), np.arange(4)))[0]
    assert found.severity == "warning"
    assert found.evidence["pattern"] == "arange"
    assert found.evidence["chance_log10"] < -9


@pytest.mark.parametrize("per_row", [True, False])
@pytest.mark.parametrize("start", [0, 5, 30])
def test_running_ids_are_filler_from_any_start_on(per_row, start):
    trace = filled(slice(10, 16), running(6, start, per_row=per_row))
    assert places(trace, "filler-rows") == [("r1", (10, 16), ALL)]
    assert findings(trace)[0].evidence["pattern"] == "running-arange"


def test_running_ids_over_dense_layers_too_are_filler():
    facts = make_facts(layers=5, experts=32, top_k=4, layer_axis="all", moe_layers=[1, 2, 4])
    whole = (np.arange(6 * 5 * 4) % 32).reshape(6, 5, 4)
    records = make_records(facts, 3)
    records[1].expert_ids[10:16] = whole
    assert places(make_trace(records, facts), "filler-rows") == [("r1", (10, 16), (1, 2, 4))]


def test_running_ids_of_a_tiny_model_are_found_once_they_have_come_back_under_other_tokens():
    """In 2 layers of 8 experts 4 rows use every expert; what a longer run adds is that rows return."""
    facts = make_facts(layers=2, experts=8, top_k=2)
    for count, expected in ((4, []), (16, [("r1", (8, 24), (0, 1))])):
        trace = filled(slice(8, 8 + count), running(count, 3, facts), facts)
        assert places(trace, "filler-rows") == expected


def test_running_ids_that_skip_a_row_are_two_runs():
    rows = running(12, 3).copy()
    rows[6:] = (rows[6:] + 1) % 32
    trace = filled(slice(10, 22), rows)
    assert places(trace, "filler-rows") == [("r1", (10, 16), ALL), ("r1", (16, 22), ALL)]


def test_one_cell_in_all_layers_and_rows_is_filler():
    trace = filled(slice(5, 12), [9, 2, 30, 4])
    assert places(trace, "filler-rows") == [("r1", (5, 12), ALL)]
    assert findings(trace)[0].evidence["pattern"] == "constant"


def test_a_pattern_in_all_layers_but_one_is_no_filler():
    trace = filled((slice(5, 12), slice(0, 3)), np.arange(4))
    assert "filler-rows" not in {f.rule for f in findings(trace)}


def test_nan_logits_are_filler_in_all_layers_from_the_first_bad_one_on():
    records = make_records(FACTS, 3)
    for record in records:
        record.expert_ids[:, 2:] = np.arange(4)
    trace = make_trace(records, FACTS)
    assert places(trace, "filler-rows") == [(f"r{i}", (0, 39), (2, 3)) for i in range(3)]
    assert findings(trace)[0].evidence["pattern"] == "arange-from-layer"


def test_nan_logits_from_the_first_layer_on_are_filler_in_every_row_of_the_trace():
    records = make_records(FACTS, 3)
    for record in records:
        record.expert_ids[:] = np.arange(4)
    assert places(make_trace(records, FACTS), "filler-rows") == [(f"r{i}", (0, 39), ALL) for i in range(3)]


def test_arange_in_a_tiny_model_is_nothing_to_speak_of():
    """With 4 experts, top-4 and one layer every 24th cell is arange(K); with sorted slots every one is."""
    facts = make_facts(layers=1, experts=4, top_k=4)
    records = make_records(facts, 6, prompt_len=40)
    records[1].expert_ids[5:9] = np.arange(4)
    assert not rules_of(records, facts)
    for record in records:
        record.expert_ids[:] = np.arange(4)
    assert not rules_of(records, facts, slot_order="sorted")


def test_rows_declared_filler_are_not_reported():
    records = make_records(FACTS, 3)
    records[1].expert_ids[5:12] = np.arange(4)
    records[1].validity[5:12] = 2
    assert not findings(make_trace(records, FACTS))
