import numpy as np
from analysis.rules.shorthand import findings, places
from analysis.tracefactory import make_facts, make_record, make_records, make_trace
from hypothesis import given
from hypothesis import strategies as st

from moeinspect.analysis.rules.cell_facts import cell_facts, has_duplicate, multiplicity


def test_a_repeated_id_is_found_with_its_multiplicity():
    facts = make_facts(layers=3, top_k=4)
    record = make_record("a", range(9), range(4), facts)
    record.expert_ids[4:6, 1] = [7, 3, 7, 7]
    found = findings(make_trace([record], facts))
    assert [(f.rule, f.rows, f.layers, f.count) for f in found] == [("duplicate-experts", (4, 6), (1,), 2)]
    assert found[0].evidence["multiplicity"] == 3
    assert found[0].evidence["example"] == [7, 3, 7, 7]


def test_cells_of_zeros_count_once_under_the_zero_rules():
    facts = make_facts(layers=3, top_k=2)
    record = make_record("a", range(9), range(4), facts)
    record.expert_ids[4, 1], record.expert_ids[5, 1] = 0, 5
    trace = make_trace([record], facts)
    assert places(trace, "zero-rows") == [("a", (4, 5), (1,))]
    assert places(trace, "duplicate-experts") == [("a", (5, 6), (1,))]


def test_healthy_rows_have_no_duplicates():
    facts = make_facts(layers=3, experts=8, top_k=8)
    assert not findings(make_trace(make_records(facts), facts))


@given(st.integers(1, 9), st.integers(0, 6), st.integers(0, 10**6))
def test_facts_of_cells_equal_those_of_plain_python(top_k, rows, seed):
    rng = np.random.default_rng(seed)
    dtype = rng.choice([np.uint8, np.uint16, np.int32])
    ids = rng.integers(0, 12, (rows, 3, top_k)).astype(dtype)
    ids[rng.random(ids.shape[:2]) < 0.2] = 0
    facts = cell_facts(ids, 10)
    for row, layer in np.ndindex(ids.shape[:2]):
        cell = ids[row, layer].tolist()
        assert facts.zero[row, layer] == (not any(cell))
        assert facts.duplicate[row, layer] == (len(set(cell)) < top_k)
        assert facts.out_of_range[row, layer] == any(i >= 10 for i in cell)


@given(st.lists(st.lists(st.integers(0, 5), min_size=4, max_size=4), min_size=1, max_size=8))
def test_multiplicity_is_that_of_the_worst_cell(cells):
    array = np.asarray(cells)
    assert multiplicity(array) == max(cell.count(i) for cell in cells for i in cell)
    assert has_duplicate(np.ascontiguousarray(array.T)).tolist() == [len(set(cell)) < 4 for cell in cells]
