"""Whether ranges tile what they should, against a set of positions."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from moeinspect.trace.ranges import first_duplicate, supported_requests, tiling_fault


@given(
    st.lists(st.tuples(st.integers(-1, 8), st.integers(0, 4)), max_size=5),
    st.integers(0, 9),
)
def test_ranges_tile_exactly_if_each_position_is_covered_once(ranges, total):
    start = np.asarray([first for first, _ in ranges], dtype=np.int64)
    count = np.asarray([length for _, length in ranges], dtype=np.int32)
    covered = sorted(position for first, length in ranges for position in range(first, first + length))
    inside = all(0 <= first <= total for first, _ in ranges)
    tiles = covered == list(range(total)) and inside
    fault = tiling_fault(start, count, total)
    assert (fault is None) == tiles
    if fault is not None and ranges:
        assert 0 <= fault[1] < len(ranges)


@given(st.integers(0, 6), st.data())
def test_shuffled_pieces_of_a_whole_tile_it(pieces, data):
    count = np.asarray(data.draw(st.lists(st.integers(0, 5), min_size=pieces, max_size=pieces)), np.int64)
    start = np.cumsum(count) - count
    order = np.asarray(data.draw(st.permutations(range(pieces))), dtype=np.int64)
    assert tiling_fault(start[order], count[order], int(count.sum())) is None


def test_requests_are_supported_up_to_the_first_that_is_not_whole():
    ids = np.asarray(["a", "b", "", "d"])
    ends = np.asarray([3, 5, 6, 9])
    assert supported_requests(ids, (ends, ends), (9, 9)) == 2
    assert supported_requests(ids[:2], (ends[:2], ends[:2]), (9, 4)) == 1
    assert supported_requests(ids[:2], (ends[:2], ends[:2]), (9, 9)) == 2
    assert supported_requests(ids[:0], (ends[:0],), (0,)) == 0


def test_a_duplicate_is_an_id_and_sample_that_were_there_before():
    ids, samples = np.asarray(["a", "b", "a", "a"]), np.asarray([0, 0, 1, 0], np.int32)
    assert first_duplicate(ids, samples) == 3
    assert first_duplicate(ids[:3], samples[:3]) is None
