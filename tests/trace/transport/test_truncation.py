"""Prompts that lost their first tokens."""

import numpy as np
import pytest
from analysis.tracefactory import make_facts, make_record, make_trace

from moeinspect.trace.transport import NoEffectError
from moeinspect.trace.transport.truncation import prompts_truncated

FACTS = make_facts(3, 16, 4)
LONG = make_record("long", range(20), range(50, 55), FACTS)
SHORT = make_record("short", range(9), range(50, 55), FACTS)


@pytest.mark.parametrize(
    ("rows", "kept"),
    [("whole", slice(0, 24)), ("tail", slice(0, 16)), ("twice", slice(16, 24)), ("cut", slice(8, 24))],
)
def test_tokens_are_cut_from_the_left_and_rows_as_asked(rows, kept):
    trace = prompts_truncated(make_trace([LONG, SHORT], FACTS), 12, rows)
    assert trace.requests.prompt_len.tolist() == [12, 9]
    assert trace.tokens_of(0).tolist() == [*range(8, 20), *range(50, 55)]
    assert np.array_equal(trace.rows.expert_ids[trace.row_range(0)], LONG.expert_ids[kept])
    assert np.array_equal(trace.rows.expert_ids[trace.row_range(1)], SHORT.expert_ids)


def test_rows_that_start_later_are_cut_by_what_they_have():
    record = make_record("long", range(20), range(50, 55), FACTS, start_pos=5)
    trace = prompts_truncated(make_trace([record], FACTS), 12, "cut")
    assert trace.requests.start_pos.tolist() == [0]
    assert np.array_equal(trace.rows.expert_ids, record.expert_ids[3:])


def test_prompts_that_are_short_enough_are_left_alone():
    with pytest.raises(NoEffectError, match="no prompt has more than 20 tokens"):
        prompts_truncated(make_trace([LONG, SHORT], FACTS), 20, "whole")
