"""Exchanges between ranks move bits as they are, and a rank that is gone is named."""

import threading

import pytest
import torch
from rank_harness import cached_builtin, on_ranks

from moeinspect.errors import EngineError, UsageError
from moeinspect.runtime.parallel.groups import RankGroup
from moeinspect.runtime.parallel.layout import RankLayout, RankPlace
from moeinspect.runtime.parallel.links import LinkError, file_store
from moeinspect.runtime.parallel.shard import ModelShard

DTYPES = (torch.bfloat16, torch.float32, torch.uint8, torch.int16, torch.int64)


def rows_of(rank, to, dtype):
    """What `rank` has for `to`: fewer rows for some, none for others."""
    count = (rank + 2 * to) % 3
    return (torch.arange(count * 6).view(count, 2, 3) + 40 * rank + 7 * to).to(dtype)


def test_every_exchange_moves_rows_of_any_dtype(tmp_path):
    layout = RankLayout(3)

    def exchange(ranks):
        group, me = ranks.ep, ranks.rank
        for dtype in DTYPES:
            parts = [rows_of(me, to, dtype) for to in range(3)]
            due = torch.cat([rows_of(source, me, dtype) for source in range(3)])
            counts = [len(rows_of(source, me, dtype)) for source in range(3)]
            assert torch.equal(group.all_to_all(torch.cat(parts), [len(p) for p in parts], counts), due)
            everybody = torch.cat([rows_of(source, 0, dtype) for source in range(3)])
            counts = [len(rows_of(source, 0, dtype)) for source in range(3)]
            assert torch.equal(group.all_gather_rows(parts[0], counts), everybody)
            packed = group.all_gather_packed([parts[0], parts[0].double()], counts)
            assert torch.equal(packed[0], everybody) and torch.equal(packed[1], everybody.double())
        same = group.all_gather(torch.full((1, 2), me))
        assert same.tolist() == [[[source, source]] for source in range(3)]
        sums = group.reduce_scatter_rows(torch.arange(6.0).view(6, 1) * 10**me, [1, 2, 3])
        assert sums.flatten().tolist() == [111.0 * i for i in [[0], [1, 2], [3, 4, 5]][me]]
        if me == 0:
            group.send(torch.tensor([1.5]), 2, 5)
            group.send(torch.tensor([2.5]), 2, 5)
        if me == 2:
            assert [group.receive((1,), torch.float32, 0, 5).item() for _ in range(2)] == [1.5, 2.5]
        return True

    assert all(on_ranks(layout, tmp_path, exchange))


def test_the_one_that_went_away_is_named(tmp_path):
    all_have_met = threading.Barrier(2)

    def exchange(ranks):
        all_have_met.wait()
        if ranks.rank == 1:
            del ranks.ep._group
            return None
        with pytest.raises(LinkError, match="rank-1 broke") as collective:
            ranks.ep.all_gather(torch.zeros(2))
        with pytest.raises(LinkError, match="rank-1 broke") as message:
            ranks.ep.receive((2,), torch.float32, 1, 7)
        return collective.value.peer, message.value.peer

    assert on_ranks(RankLayout(2), tmp_path, exchange)[0] == ("rank-1", "rank-1")


def test_who_never_came_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("moeinspect.runtime.parallel.links.CONNECT_TIMEOUT_S", 0.2)
    with pytest.raises(EngineError, match="a could not meet b"):
        RankGroup.open(file_store(str(tmp_path / "store")), "tp", (0, 1), 0, ["a", "b"])


def test_a_rank_alone_needs_nobody():
    group = RankGroup((4,), 4, ["-"] * 5)
    x = torch.arange(3.0)
    assert torch.equal(group.all_gather(x), x[None])
    assert torch.equal(group.all_to_all(x, [3], [3]), x)
    assert torch.equal(group.reduce_scatter_rows(x, [3]), x)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 2, 3), (3, 1, 4), (2, 1, 1)])
def test_shards_cover_a_model_without_overlap(sizes):
    layout, (config, _) = RankLayout(*sizes), cached_builtin("builtin:random")
    held = []
    for place in layout.places():
        shard = ModelShard(layout, place)
        shard.check(config)
        heads = shard.heads(config).num_kv_heads
        for layer in shard.moe_layers(config):
            held += [(layer, expert) for expert in shard.experts(config.num_experts)]
        kv = shard.kv_shape(config, 8, torch.float32)
        assert (kv.num_kv_heads, kv.first_layer) == (heads, shard.layers(config.num_hidden_layers).start)
        assert heads * layout.tp == config.num_key_value_heads
    assert sorted(held) == [(layer, e) for layer in config.moe_layers for e in range(config.num_experts)]


@pytest.mark.parametrize(
    "layout, words",
    [(RankLayout(tp=4), "--tp-size 4.*num_key_value_heads"), (RankLayout(pp=7), "--pp-size 7.*6 layers")],
)
def test_a_model_that_ranks_cannot_share_is_refused(layout, words):
    config, _ = cached_builtin("builtin:random")
    with pytest.raises(UsageError, match=words):
        ModelShard(layout, RankPlace(0, 0, 0)).check(config)
