"""Where rows of a forward stand over ranks."""

from hypothesis import given
from hypothesis import strategies as st

from moeinspect.runtime.parallel.rows import GatheredRows, shard_size


@given(st.lists(st.integers(0, 30), min_size=1, max_size=3), st.sampled_from([1, 4, 8]), st.integers(1, 4))
def test_every_row_is_on_one_rank_and_at_its_place(dp_rows, tile, tp):
    rows = GatheredRows(tuple(dp_rows), tuple(dp_rows), tile, tp)
    gathered = []  # (data-parallel rank, row) as the ranks of one tp after the other gather them
    for t in range(tp):
        own = [(dp, row) for dp in range(len(dp_rows)) for row in rows.shard(dp, t)]
        assert len(own) == rows.num_gathered(t)
        places = rows.places(t).tolist()
        assert places == [rows.start(dp) + row for dp, row in own]
        for dp in range(len(dp_rows)):
            here = own[rows.among_gathered(dp, t)]
            assert here == [(dp, row) for row in rows.shard(dp, t)]
            assert len(rows.shard(dp, t)) <= shard_size(dp_rows[dp], tile, tp)
        gathered += own
    by_rank = [gathered[i] for i in rows.by_rank.tolist()]
    assert by_rank == [(dp, row) for dp, n in enumerate(dp_rows) for row in range(n)]
    assert sum(rows.ep_counts()) == rows.total == len(by_rank)
