import numpy as np
from analysis.rules.shorthand import findings, places, rules_of
from analysis.tracefactory import make_facts, make_records, make_trace

FACTS = make_facts(layers=4, experts=32, top_k=4)
ALL = (0, 1, 2, 3)


def set_column(record, rows, layers, slot, expert):
    """Puts `expert` into one slot, the id that stood there into the slot that held `expert`."""
    for layer in layers:
        cells = record.expert_ids[rows, layer]
        for cell in cells:
            cell[cell == expert] = cell[slot]
            cell[slot] = expert


def test_a_column_that_is_constant_over_a_whole_trace_is_found_in_every_request():
    records = make_records(FACTS, 4, prompt_len=10, output_len=10)
    for record in records:
        set_column(record, slice(None), ALL, 3, 31)
    found = findings(make_trace(records, FACTS))
    assert [(f.rule, f.request, f.rows, f.layers) for f in found] == [
        ("constant-column", f"r{i}", (0, 19), ALL) for i in range(4)
    ]
    assert found[0].evidence["columns"][0] == {"layer": 0, "slot": 3, "id": 31}
    assert found[0].count == 19 * 4


def test_32_rows_of_a_request_are_enough_and_31_are_not():
    for count, expected in ((32, [("r1", (5, 37), (2,))]), (31, [])):
        records = make_records(FACTS, 3, prompt_len=40)
        records[1].expert_ids[[4, 5 + count], 2, 3] = (records[1].expert_ids[[4, 5 + count], 2, 3] + 1) % 9
        set_column(records[1], slice(5, 5 + count), [2], 3, 20)
        assert places(make_trace(records, FACTS), "constant-column") == expected


def test_a_favourite_expert_of_an_uneven_router_is_no_constant_column():
    facts = make_facts(layers=2, experts=16, top_k=4)
    records = make_records(facts, 6, prompt_len=60, skew=6.0, sharpness=0.5)
    ids = np.concatenate([record.expert_ids for record in records])
    assert (ids[:, 0, 0] == np.bincount(ids[:, 0, 0].astype(int)).argmax()).mean() > 0.95
    assert not rules_of(records, facts)


def test_a_favourite_expert_of_one_layer_alone_is_judged_by_how_evenly_the_others_are_used():
    facts = make_facts(layers=2, experts=8, top_k=2)
    records = make_records(facts, 6, prompt_len=40, skew=0.7)
    for record in records:
        set_column(record, slice(None), [1], 0, 5)
    assert not rules_of(records, facts)


def test_few_tokens_again_and_again_are_no_evidence():
    facts = make_facts(layers=2, experts=32, top_k=2)
    records = make_records(facts, 4, prompt_len=60, vocab=3, context=1)
    assert not rules_of(records, facts)
