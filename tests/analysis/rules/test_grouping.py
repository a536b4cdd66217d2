import numpy as np
from analysis.rules.shorthand import findings
from analysis.tracefactory import make_facts, make_record, make_records, make_trace

from moeinspect.analysis.rules import grouping
from moeinspect.analysis.rules.grouping import layers_text, rows_text

FACTS = make_facts(layers=4, experts=16, top_k=4)


def scattered():
    records = make_records(FACTS, 3)
    for record in records[:2]:
        record.expert_ids[5:30:2, 1] = [3, 3, 1, 2]
        record.expert_ids[10, 3] = [4, 4, 4, 2]
    return make_trace(records, FACTS)


def test_very_many_runs_become_one_finding_per_request(monkeypatch):
    each = findings(scattered())
    assert len(each) == 2 * 14
    monkeypatch.setattr(grouping, "MAX_RUNS", 20)
    merged = findings(scattered())
    assert [(f.request, f.rows, f.layers, f.count) for f in merged] == [
        (f"r{i}", (5, 30), (1, 3), 14) for i in range(2)
    ]
    assert sum(f.count for f in merged) == sum(f.count for f in each)
    assert all(f.evidence["merged"] is True and f.evidence["multiplicity"] == 3 for f in merged)
    assert merged[0].evidence["example"] == [3, 3, 1, 2]


def test_regions_are_told_by_the_prompt_length_and_the_start_position():
    record = make_record("a", range(10), range(8), FACTS, start_pos=4)
    for rows, region in ((slice(0, 6), "prompt"), (slice(6, 9), "output"), (slice(5, 7), "both")):
        record.expert_ids[:] = make_record("a", range(10), range(8), FACTS, start_pos=4).expert_ids
        record.expert_ids[rows] = 0
        found = findings(make_trace([record], FACTS))
        assert [(f.region, f.rows) for f in found] == [(region, (rows.start, rows.stop))]


def test_places_are_named_as_people_count():
    assert rows_text((4, 5)) == "row 4"
    assert rows_text((4, 9)) == "rows 4-8"
    assert layers_text((3,)) == "layer 3"
    assert layers_text((0, 1, 2, 5, 7, 8)) == "layers 0-2, 5, 7-8"


def test_the_message_says_where_and_what():
    record = make_record("a", range(10), range(8), FACTS)
    record.expert_ids[:10] = 0
    found = findings(make_trace([record], FACTS))[0]
    assert found.message == "rows 0-9 (prompt), all 4 MoE layers: all 4 ids are 0"
    record.expert_ids[10:, 1] = np.int64(0)
    found = findings(make_trace([record], FACTS), "zero-layers")[0]
    assert "layer 1" in found.message
