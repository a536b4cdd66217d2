import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from moeinspect.analysis.rules.runs import count_distinct, count_up, run_bounds, spread, true_runs

FLAGS = st.lists(st.booleans(), max_size=20)


@given(st.lists(st.integers(0, 2), max_size=20))
def test_run_bounds_cut_a_sequence_into_maximal_runs(values):
    array = np.asarray(values, dtype=np.int64)
    joined = np.zeros(len(array), dtype=bool)
    joined[1:] = array[1:] == array[:-1]
    starts, ends = run_bounds(joined)
    assert [v for a, b in zip(starts, ends, strict=True) for v in values[a:b]] == values
    assert all(len(set(values[a:b])) == 1 for a, b in zip(starts, ends, strict=True))
    assert all(values[b - 1] != values[b] for b in ends.tolist() if b < len(values))


@given(FLAGS, st.integers(0, 10**6))
def test_true_runs_cover_the_true_elements_and_break_where_not_joined(flags, seed):
    mask = np.asarray(flags, dtype=bool)
    joined = np.random.default_rng(seed).random(len(flags)) < 0.7
    expected, first = [], None
    for i in range(len(flags)):
        if first is not None and not (flags[i] and joined[i]):
            expected.append((first, i))
            first = None
        if flags[i] and first is None:
            first = i
    if first is not None:
        expected.append((first, len(flags)))
    starts, ends = true_runs(mask, joined)
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == expected


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), max_size=8))
def test_spread_and_count_up_list_the_elements_of_ranges(ranges):
    starts = np.asarray([a for a, _ in ranges], dtype=np.int64)
    lengths = np.asarray([n for _, n in ranges], dtype=np.int64)
    assert spread(starts, starts + lengths).tolist() == [a + i for a, n in ranges for i in range(n)]
    assert count_up(lengths).tolist() == [i for _, n in ranges for i in range(n)]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), max_size=30))
def test_count_distinct_counts_different_values_of_each_group(pairs):
    group = np.asarray([g for g, _ in pairs], dtype=np.int64)
    value = np.asarray([v for _, v in pairs], dtype=np.int64)
    expected = [len({v for g, v in pairs if g == i}) for i in range(5)]
    assert count_distinct(group, value, 5).tolist() == expected
