import numpy as np
from analysis.rules.shorthand import findings, places, rules_of
from analysis.tracefactory import make_facts, make_record, make_records, make_trace

FACTS = make_facts(layers=4, experts=32, top_k=4)
ALL = (0, 1, 2, 3)


def repeated(count: int, first: int = 3):
    records = make_records(FACTS, 4)
    records[2].expert_ids[first : first + count] = records[2].expert_ids[first]
    return make_trace(records, FACTS)


def test_four_equal_rows_of_different_tokens_are_repeated_rows_and_three_are_not():
    found = findings(repeated(4))
    assert [(f.rule, f.request, f.rows, f.layers, f.count) for f in found] == [
        ("repeated-rows", "r2", (3, 7), ALL, 16)
    ]
    assert found[0].evidence["tokens"] == 4
    assert found[0].evidence["chance_log10"] < -9
    assert not findings(repeated(3))


def test_equal_rows_of_one_token_are_no_repeated_rows():
    record = make_record("a", [5] * 30, [5] * 10, FACTS, context=1)
    assert len({row.tobytes() for row in record.expert_ids}) == 1
    assert not rules_of([record, *make_records(FACTS, 4)], FACTS)


def test_a_loop_of_two_tokens_with_equal_rows_is_weaker_evidence_than_many_tokens():
    def chance(prompt):
        records = make_records(FACTS, 4)
        loop = make_record("loop", prompt, [1], FACTS)
        loop.expert_ids[:] = loop.expert_ids[0]
        found = findings(make_trace([*records, loop], FACTS), "repeated-rows")
        return found[0].evidence["chance_log10"] if found else 0.0

    assert chance(list(range(12))) < 3 * chance([1, 2] * 6)


def test_one_static_row_for_each_decode_is_found_in_every_request():
    records = make_records(FACTS, 6, prompt_len=15, output_len=20)
    for record in records:
        record.expert_ids[15:] = record.expert_ids[15]
    found = findings(make_trace(records, FACTS))
    assert [(f.rule, f.request, f.rows, f.region) for f in found] == [
        ("repeated-rows", f"r{i}", (15, 34), "output") for i in range(6)
    ]


def test_two_runs_side_by_side_are_two_findings():
    records = make_records(FACTS, 4)
    for first in (4, 10):
        records[0].expert_ids[first : first + 6] = records[0].expert_ids[first]
    trace = make_trace(records, FACTS)
    assert places(trace, "repeated-rows") == [("r0", (4, 10), ALL), ("r0", (10, 16), ALL)]


def test_rows_that_are_equal_in_all_layers_but_one_are_not_reported():
    records = make_records(FACTS, 4)
    records[0].expert_ids[4:10, 1:] = records[0].expert_ids[4, 1:]
    assert not rules_of(records, FACTS)


def test_equal_rows_are_expected_where_few_rows_are_possible():
    facts = make_facts(layers=1, experts=4, top_k=1)
    records = make_records(facts, 6, prompt_len=60, skew=1.5)
    ids = np.concatenate([record.expert_ids for record in records])
    assert (np.diff(ids[:, 0, 0].astype(int)) == 0).sum() > 100
    assert not rules_of(records, facts)


def test_an_exempt_layer_that_holds_nothing_does_not_hide_repeated_rows():
    facts = make_facts(layers=4, experts=32, top_k=4, exempt=[0])
    records = make_records(facts, 4)
    for record in records:
        record.expert_ids[:, 0] = -1
    assert not rules_of(records, facts)
    records[1].expert_ids[5:15] = records[1].expert_ids[5]
    assert places(make_trace(records, facts), "repeated-rows") == [("r1", (5, 15), (1, 2, 3))]


def test_layers_that_are_zero_count_there_and_the_others_as_repeated():
    records = make_records(FACTS, 4)
    records[1].expert_ids[:, :2] = 0
    records[1].expert_ids[5:15] = records[1].expert_ids[5]
    trace = make_trace(records, FACTS)
    assert places(trace, "zero-layers") == [("r1", (0, 39), (0, 1))]
    assert places(trace, "repeated-rows") == [("r1", (5, 15), (2, 3))]
