import numpy as np
from analysis.rules.shorthand import findings, rules_of
from analysis.tracefactory import make_facts, make_records, make_trace

FACTS = make_facts(layers=4, experts=512, top_k=8)


def wrapped(facts=FACTS, count=8, **options):
    records = make_records(facts, count, prompt_len=40, output_len=11, **options)
    for record in records:
        record.expert_ids %= 256
    return records


def test_ids_squeezed_into_a_byte_are_found_once_for_the_trace():
    found = findings(make_trace(wrapped(), FACTS), "id-cliff")
    assert len(found) == 1
    assert (found[0].request, found[0].rows, found[0].layers) == (None, None, (0, 1, 2, 3))
    assert found[0].evidence["num_ids"] == found[0].count * 8


def test_cells_in_which_wrapping_made_a_duplicate_count_there():
    trace = make_trace(wrapped(), FACTS)
    duplicates = sum(f.count for f in findings(trace, "duplicate-experts"))
    assert duplicates > 0
    assert findings(trace, "id-cliff")[0].count + duplicates == 4 * len(trace.rows)


def test_fewer_than_10000_ids_say_nothing():
    records = wrapped(count=6)
    assert sum(record.expert_ids.size for record in records) < 10_000
    assert "id-cliff" not in rules_of(records, FACTS)


def test_one_id_above_255_clears_a_trace():
    records = wrapped()
    records[3].expert_ids[5, 2, 1] = 300
    assert "id-cliff" not in rules_of(records, FACTS)


def test_healthy_ids_of_many_experts_are_clean():
    assert not rules_of(make_records(FACTS, 8, prompt_len=40, output_len=11), FACTS)


def test_a_model_with_257_experts_may_well_never_choose_the_last():
    facts = make_facts(layers=2, experts=257, top_k=8)
    records = make_records(facts, 14, prompt_len=40, output_len=11)
    for record in records:
        swap = np.argwhere(record.expert_ids == 256)
        record.expert_ids[tuple(swap.T)] = 0
    assert "id-cliff" not in rules_of(records, facts)


def test_models_with_at_most_256_experts_have_no_cliff():
    facts = make_facts(layers=4, experts=256, top_k=8)
    assert not rules_of(make_records(facts, 8, prompt_len=40, output_len=11), facts)
