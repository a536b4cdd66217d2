from dataclasses import replace

import numpy as np
from analysis.rules.shorthand import findings, places, rules_of
from analysis.tracefactory import make_facts, make_record, make_records, make_trace, random_record

from moeinspect.trace.schema import Origin

FACTS = make_facts(layers=4, experts=32, top_k=4)
ALL = (0, 1, 2, 3)


def copied(count: int, target: int = 4, source: int = 9):
    records = make_records(FACTS, 4)
    records[2].expert_ids[target : target + count] = records[0].expert_ids[source : source + count]
    return records


def test_rows_of_another_request_are_found_in_both_where_nothing_tells_the_copy():
    trace = make_trace(copied(6), FACTS)
    assert places(trace, "stale-rows") == [("r0", (9, 15), ALL), ("r2", (4, 10), ALL)]
    copy = findings(trace)[1]
    assert copy.evidence["sources"] == [{"request": "r0", "rows": [9, 15]}]
    assert copy.evidence["chance_log10"] < -9


def test_two_rows_are_enough_and_one_is_not():
    assert places(make_trace(copied(2), FACTS), "stale-rows") == [("r0", (9, 11), ALL), ("r2", (4, 6), ALL)]
    assert not rules_of(copied(1), FACTS)


def test_a_cached_prefix_that_equals_computed_rows_is_the_copy():
    records = copied(8, target=0)
    records[2].origin[:8] = Origin.PREFIX_CACHE
    assert places(make_trace(records, FACTS), "stale-rows") == [("r2", (0, 8), ALL)]


def test_rows_that_were_never_computed_are_the_copy():
    records = copied(8, target=0)
    records[2].step[:8] = -1
    assert places(make_trace(records, FACTS), "stale-rows") == [("r2", (0, 8), ALL)]


def test_a_prefix_that_stands_elsewhere_with_other_ids_marks_the_copy():
    records = copied(8, target=0)
    again = make_record("again", records[2].prompt_ids, [1, 2], FACTS)
    assert places(make_trace([*records, again], FACTS), "stale-rows") == [("r2", (0, 8), ALL)]


def test_rows_of_the_slots_former_owners_are_found_in_any_order():
    records = make_records(FACTS, 4)
    slots = np.random.default_rng(3).permutation(39)
    for number, record in enumerate(records):
        record.slot = record.slot if number else slots.astype(np.int32)
        record.step = (record.step + 100 * number).astype(np.int32)
    victim, former = records[3], records[0]
    victim.slot = np.arange(39, dtype=np.int32)
    victim.expert_ids[:10] = former.expert_ids[np.argsort(slots)[:10]]
    trace = make_trace(records, FACTS)
    assert places(trace, "stale-rows") == [("r3", (0, 10), ALL)]
    assert findings(trace)[0].evidence["former_owner"] is True


def test_slots_that_were_never_computed_show_the_row_of_their_last_owner_before_the_request():
    records = make_records(FACTS, 3, prompt_len=10, output_len=10)
    for number, record in enumerate(records):
        record.slot = np.arange(19, dtype=np.int32)
        record.step = (record.step + 100 * number).astype(np.int32)
    records[2].step[:10] = -1
    records[2].expert_ids[:10] = records[1].expert_ids[:10]
    found = findings(make_trace(records, FACTS))
    assert [(f.request, f.rows, f.evidence["former_owner"]) for f in found] == [("r2", (0, 10), True)]


def test_equal_rows_after_equal_tokens_are_healthy_in_any_request():
    rng = np.random.default_rng(5)
    prefix = rng.integers(0, 500, 20).tolist()
    records = [random_record(f"r{i}", FACTS, rng, prefix=prefix) for i in range(4)]
    records.append(replace(records[0], id="again"))
    assert not rules_of(records, FACTS)


def test_the_same_text_at_another_place_is_healthy():
    """Rows that depend on the last two tokens alone: long equal stretches after other tokens."""
    rng = np.random.default_rng(6)
    text = rng.integers(0, 500, 40).tolist()
    prompts = [text, [7, *text], [8, 9, 10, *text], text[3:]]
    records = [make_record(f"r{i}", prompt, [1, 2], FACTS, context=2) for i, prompt in enumerate(prompts)]
    assert not rules_of([*records, *make_records(FACTS, 3)], FACTS)


def test_a_whole_request_that_carries_anothers_rows_is_found():
    records = make_records(FACTS, 4)
    records[3].expert_ids[:] = records[1].expert_ids
    trace = make_trace(records, FACTS)
    assert places(trace, "stale-rows") == [("r1", (0, 39), ALL), ("r3", (0, 39), ALL)]


def test_stale_rows_of_a_shared_prefix_are_found_in_every_request_that_has_it():
    rng = np.random.default_rng(8)
    prefix = rng.integers(0, 500, 12).tolist()
    victims = [random_record(f"v{i}", FACTS, rng, prefix=prefix) for i in range(3)]
    source = random_record("source", FACTS, rng)
    for victim in victims:
        victim.expert_ids[:12] = source.expert_ids[5:17]
        victim.origin[:12] = Origin.PREFIX_CACHE
    assert places(make_trace([source, *victims], FACTS), "stale-rows") == [
        (f"v{i}", (0, 12), ALL) for i in range(3)
    ]


def test_zero_rows_in_two_requests_are_not_stale():
    records = make_records(FACTS, 3)
    for record in records:
        record.expert_ids[:10] = 0
    assert rules_of(records, FACTS) == {"zero-rows"}


def test_equal_rows_are_expected_where_few_rows_are_possible():
    facts = make_facts(layers=1, experts=8, top_k=2)
    assert not rules_of(make_records(facts, 12, prompt_len=60, vocab=40, skew=1.0), facts)
