"""The former owner of each slot against a plain search."""

import numpy as np
from analysis.tracefactory import make_facts, make_records, make_trace
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinspect.analysis.rules.slot_owner import former_owner_rows
from moeinspect.analysis.rules.view import TraceView

FACTS = make_facts(layers=1, experts=4, top_k=1)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_former_owners_are_the_rows_of_the_last_earlier_step_in_the_slot(seed):
    rng = np.random.default_rng(seed)
    records = make_records(FACTS, 3, prompt_len=4, output_len=3)
    for record in records:
        n = len(record.expert_ids)
        record.slot = rng.integers(-1, 4, n).astype(np.int32)
        record.step = rng.integers(0, 6, n).astype(np.int32)
        record.worker = rng.integers(0, 2, n).astype(np.uint16)
    trace = make_trace(records, FACTS)
    rows = trace.rows
    expected = {}
    for row in range(len(rows)):
        if rows.slot[row] < 0:
            continue
        here = [
            other
            for other in range(len(rows))
            if (rows.slot[other], rows.worker[other]) == (rows.slot[row], rows.worker[row])
            and rows.step[other] < rows.step[row]
        ]
        if here:
            expected[row] = max(rows.step[other] for other in here)
    index, former = former_owner_rows(TraceView(trace))
    found = dict(zip(index.tolist(), former.tolist(), strict=True))
    assert {row: rows.step[other] for row, other in found.items()} == expected
    assert all(rows.slot[row] == rows.slot[other] for row, other in found.items())
    assert all(rows.worker[row] == rows.worker[other] for row, other in found.items())


def test_a_row_that_was_never_computed_comes_right_before_its_requests_first_step():
    records = make_records(FACTS, 3, prompt_len=4, output_len=3)
    for number, record in enumerate(records):
        record.slot = np.arange(6, dtype=np.int32)
        record.step = np.full(6, 10 * number, dtype=np.int32)
    records[1].step[:4] = -1
    index, former = former_owner_rows(TraceView(make_trace(records, FACTS)))
    assert dict(zip(index.tolist(), former.tolist(), strict=True)) == {
        **{6 + i: i for i in range(6)},
        **{12 + i: 6 + i for i in range(6)},
    }


def test_a_row_that_was_never_computed_in_a_request_without_any_step_has_no_owner():
    records = make_records(FACTS, 2, prompt_len=4, output_len=3)
    for record in records:
        record.slot = np.arange(6, dtype=np.int32)
    records[1].step[:] = -1
    index, _ = former_owner_rows(TraceView(make_trace(records, FACTS)))
    assert not len(index)
