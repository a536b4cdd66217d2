"""Pairing of requests, rows and layers beyond what the random pairs cover."""

from dataclasses import replace

import numpy as np
import pytest
from analysis.tracefactory import make_facts, make_record, make_records, make_trace

from moeinspect.analysis.align import align, pair_requests
from moeinspect.errors import InputError

FACTS = make_facts()


def trace(*records, facts=FACTS, **changes):
    return make_trace(list(records), facts, **changes)


def renamed(record, name, **changes):
    return replace(record, id=name, **changes)


def test_requests_pair_by_id_and_sample_whatever_their_order():
    records = make_records(FACTS, 3)
    samples = [replace(records[0], sample=1), records[0], *records[1:]]
    pairing = pair_requests(trace(*samples), trace(*samples[::-1]))
    assert pairing.pairs == ((0, 3), (1, 2), (2, 1), (3, 0))
    assert not pairing.by_prompt


def test_a_common_id_rules_out_pairing_by_prompt():
    records = make_records(FACTS, 2)
    pairing = pair_requests(trace(*records), trace(records[0], renamed(records[1], "other")))
    assert pairing.pairs == ((0, 0),)
    assert (pairing.only_a, pairing.only_b) == ((1,), (1,))


def test_without_a_common_id_equal_prompts_pair_and_equal_outputs_first():
    one, two = (make_record("a", [1, 2, 3], output, FACTS) for output in ([7, 8, 9], [4, 5, 6]))
    a = trace(one, renamed(two, "b"))
    b = trace(renamed(two, "x"), renamed(one, "y"))
    pairing = pair_requests(a, b)
    assert pairing.by_prompt
    assert pairing.pairs == ((0, 1), (1, 0))


def test_samples_of_one_prompt_pair_in_order_when_their_outputs_differ():
    a = trace(*(make_record(f"a{i}", [1, 2], [i, i], FACTS) for i in range(2)))
    b = trace(*(make_record(f"b{i}", [1, 2], [i + 5, i], FACTS) for i in range(2)))
    assert pair_requests(a, b).pairs == ((0, 0), (1, 1))


def test_no_common_request_is_nothing_to_compare():
    a, b = trace(make_record("a", [1, 2], [3], FACTS)), trace(make_record("b", [2, 2], [3], FACTS))
    with pytest.raises(InputError, match=r"nothing to compare.*'a'.*'b'"):
        align(a, b)


def test_an_empty_trace_is_nothing_to_compare():
    with pytest.raises(InputError, match=r"nothing to compare.*no requests"):
        align(trace(), trace(make_record("b", [2, 2], [3], FACTS)))


def test_no_common_moe_layer_is_nothing_to_compare():
    facts = [make_facts(4, moe_layers=moe) for moe in ([0, 1], [2, 3])]
    a, b = (trace(make_record("a", [1, 2], [3], f), facts=f) for f in facts)
    with pytest.raises(InputError, match="no MoE layer in common"):
        align(a, b)


def test_other_tokens_from_the_first_on_are_nothing_to_compare():
    a, b = (trace(make_record("a", [first, 2], [3], FACTS)) for first in (1, 9))
    with pytest.raises(InputError, match="differ from the first one on"):
        align(a, b)


def test_rows_that_are_real_on_one_side_only_are_nothing_to_compare():
    record = make_record("a", [1, 2], [3], FACTS)
    missing = replace(record, validity=np.ones(2, np.uint8))
    with pytest.raises(InputError, match="no row of theirs is real on both sides"):
        align(trace(record), trace(missing))


def test_layers_pair_by_absolute_index_on_either_axis():
    moe = [1, 3, 4]
    by_all = make_facts(6, layer_axis="all", moe_layers=moe)
    by_moe = make_facts(6, layer_axis="moe", moe_layers=moe)
    a = trace(make_record("a", [1, 2], [3], by_all), facts=by_all)
    b = trace(make_record("a", [1, 2], [3], by_moe), facts=by_moe)
    aligned = align(a, b)
    assert aligned.layers.tolist() == moe
    assert aligned.a_axis.tolist() == moe
    assert aligned.b_axis.tolist() == [0, 1, 2]


def test_rows_pair_by_absolute_position_when_the_starts_differ():
    whole = make_record("a", [1, 2, 3, 4], [5, 6], FACTS)
    late = make_record("a", [1, 2, 3, 4], [5, 6], FACTS, start_pos=2)
    aligned = align(trace(whole), trace(late))
    assert aligned.position.tolist() == [2, 3, 4]
    assert (aligned.a_row.tolist(), aligned.b_row.tolist()) == ([2, 3, 4], [0, 1, 2])
    assert aligned.pair_rows[0].only_a.tolist() == [0, 1]


def test_the_row_of_the_first_other_token_is_not_comparable_and_the_one_before_is():
    a, b = (make_record("a", [1, 2, 3], [output, 6], FACTS) for output in (5, 7))
    aligned = align(trace(a), trace(b))
    assert aligned.position.tolist() == [0, 1, 2]
    assert aligned.pair_rows[0].first_difference == 3
    assert aligned.pair_rows[0].not_comparable == 1
