"""Slices for ranks and packs, put together wrongly."""

import numpy as np
import pytest
from analysis.tracefactory import make_facts, make_records, make_trace

from moeinspect.trace.slicing import NOTHING, sliced_source
from moeinspect.trace.transport import NoEffectError
from moeinspect.trace.transport.packing import rows_packed, rows_sliced

FACTS = make_facts(3, 16, 4)


def test_a_rank_has_a_piece_from_either_end():
    assert sliced_source(8, 2, "ranks").tolist() == [0, 1, 6, 7, 2, 3, 4, 5]
    assert sliced_source(8, 2, "swapped").tolist() == [6, 7, 0, 1, 4, 5, 2, 3]
    assert sliced_source(8, 2, "unzigzagged").tolist() == [0, 1, 4, 5, 6, 7, 2, 3]
    assert sliced_source(8, 2, "striped").tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert sliced_source(8, 2, "unstriped").tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    assert sliced_source(8, 2, "first-rank").tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert sliced_source(8, 2, "multiple").tolist() == [0, 1, 2, 3, 5, 6, 7, NOTHING]


def test_padding_of_the_last_piece_lands_in_the_middle_as_zeros():
    source = sliced_source(7, 2, "ranks")
    assert source.tolist() == [0, 1, 6, NOTHING, 2, 3, 4]
    trace = make_trace(make_records(FACTS, 1, prompt_len=4, output_len=4), FACTS)
    changed = rows_sliced(trace, 2, "ranks").rows
    assert not changed.expert_ids[3].any()
    assert np.array_equal(changed.slot[[0, 1, 2, 4, 5, 6]], trace.rows.slot[[0, 1, 6, 2, 3, 4]])


@pytest.mark.parametrize("late", [False, True])
def test_rows_move_by_one_more_at_each_seam_and_across_it(late):
    trace = make_trace(make_records(FACTS, 4, prompt_len=6, output_len=5), FACTS)
    ids, num_rows = trace.rows.expert_ids, 10
    changed = rows_packed(trace, 3, late=late).rows.expert_ids
    step = -1 if late else 1
    assert np.array_equal(changed[:10], ids[:10])
    assert np.array_equal(changed[10:19], ids[10 + step : 19 + step])
    assert np.array_equal(changed[20:28], ids[20 + 2 * step : 28 + 2 * step])
    assert np.array_equal(changed[30:], ids[30:])  # a pack of its own
    assert late or not changed[28:30].any()
    assert (rows_packed(trace, 3, keep=False).requests.num_rows == [num_rows, num_rows, 8, num_rows]).all()


def test_what_has_no_seam_shows_nothing():
    trace = make_trace(make_records(FACTS, 1, prompt_len=1, output_len=1), FACTS)
    with pytest.raises(NoEffectError, match="no request has rows enough"):
        rows_sliced(trace, 8, "ranks")
    with pytest.raises(NoEffectError, match="one sequence has no seam"):
        rows_packed(trace, 4)
