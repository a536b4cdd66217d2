"""Answers of turns that are put together wrongly."""

import numpy as np
import pytest
from analysis.tracefactory import make_facts, make_records, make_trace

from moeinspect.trace.schema import Validity
from moeinspect.trace.transport import NoEffectError
from moeinspect.trace.transport.joins import GAPS, gaps_between_turns, joined_twice

FACTS = make_facts(3, 16, 2)


def healthy():
    return make_trace(make_records(FACTS, 6), FACTS)


def test_every_answer_begins_at_row_0_again():
    trace = healthy()
    joined = joined_twice(trace, np.random.default_rng(0), parts=3, share=1.0)
    for request in range(len(trace.requests)):
        rows = trace.rows.expert_ids[trace.row_range(request)]
        held = joined.rows.expert_ids[joined.row_range(request)]
        n, extra = len(rows), len(held) - len(rows)
        first = next(m for m in range(2, n) if np.array_equal(held[m:extra], rows[: extra - m]) and m < extra)
        assert np.array_equal(held[:first], rows[:first])
        assert np.array_equal(held[extra:], rows)
    assert np.array_equal(joined.tokens, trace.tokens)


def test_cut_to_the_tokens_the_beginning_stands_twice():
    trace = healthy()
    joined = joined_twice(trace, np.random.default_rng(1), cut=True, share=1.0)
    assert np.array_equal(joined.requests.num_rows, trace.requests.num_rows)
    for request in range(len(trace.requests)):
        rows = trace.rows.expert_ids[trace.row_range(request)]
        held = joined.rows.expert_ids[joined.row_range(request)]
        n = len(rows)
        assert any(
            np.array_equal(held[:m], rows[:m]) and np.array_equal(held[m:], rows[: n - m])
            for m in range(2, n)
        )


@pytest.mark.parametrize("gap", GAPS)
def test_gaps_leave_all_other_rows(gap):
    trace = healthy()
    gapped = gaps_between_turns(trace, np.random.default_rng(2), gap=gap, turns=3, share=1.0)
    for request in range(len(trace.requests)):
        rows, held = trace.row_range(request), gapped.row_range(request)
        ids, left = trace.rows.expert_ids[rows], gapped.rows.expert_ids[held]
        slots = trace.rows.slot[rows]
        if gap.startswith("dropped"):
            kept = np.isin(slots, gapped.rows.slot[held])
            assert np.array_equal(left, ids[kept])
        else:
            marked = (left == 0).all(axis=(1, 2)) if gap == "zero-row" else gapped.rows.validity[held] == 1
            kept = ~marked
            assert np.array_equal(left[kept], ids[kept])
        lost = np.flatnonzero(~kept)
        assert lost[0] > 0 and lost[-1] < len(ids) - 1
        assert np.all(np.diff(lost) == 1) if gap.endswith("turn") else len(lost) == 2 and np.diff(lost) > 1


def test_missing_rows_are_declared():
    gapped = gaps_between_turns(healthy(), np.random.default_rng(3), gap="missing-row")
    missing = gapped.rows.validity == Validity.MISSING
    assert missing.any() and (gapped.rows.expert_ids[missing] == FACTS.sentinel).all()


def test_requests_of_few_rows_have_no_turns():
    trace = make_trace(make_records(FACTS, 2, prompt_len=2, output_len=2), FACTS)
    with pytest.raises(NoEffectError, match="turn-gap does nothing here"):
        gaps_between_turns(trace, np.random.default_rng(0))
    with pytest.raises(NoEffectError, match="double-concat does nothing here"):
        joined_twice(trace, np.random.default_rng(0))
