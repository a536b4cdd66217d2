"""What the leader gets of a forward when the ranks' captured rows are not brought together as they should."""

from dataclasses import replace

import pytest
import torch
from rank_harness import Serving, Step, draw_steps, give_threads_capturers, on_ranks, run_alone, run_rank

from moeinspect.runtime.faults import DP_SLICE, PP_STAGE, TP_SHARD, ActiveFaults
from moeinspect.runtime.forward_batch import ForwardMode
from moeinspect.runtime.parallel.layout import RankLayout
from moeinspect.runtime.parallel.rows import shard_of

TILE = 4
"""Rows of a tile of `builtin:random`."""


def captured_by_leaders(layout, folder, steps, *faults):
    """Ids [N, L, K] of each forward, by data-parallel rank: with the faults, and of each rank alone."""
    serving = Serving(faults=ActiveFaults.of(faults))
    results = on_ranks(layout, folder, lambda ranks: run_rank(serving, ranks, steps))
    seen = [results[rank][0] for rank in layout.leaders()]
    alone = [run_alone(Serving(), steps, dp)[0] for dp in range(layout.dp)]
    return [[one.captured[0] for one in of_dp] for of_dp in seen], [
        [one.captured[0] for one in of_dp] for of_dp in alone
    ]


def verify_step(mode, *requests):
    """One forward of a data-parallel rank: `requests` are their token ids, from position 0 on."""
    parts = [(ids, 0, [1 + 50 * i + p for p in range(len(ids))]) for i, ids in enumerate(requests)]
    return Step(mode, parts, [])


def test_rows_of_other_tensor_parallel_ranks_are_the_zero_tail_of_each_step(tmp_path, monkeypatch):
    give_threads_capturers(monkeypatch)
    steps = draw_steps(256, 1, seed=3)
    [seen], [alone] = captured_by_leaders(RankLayout(tp=2), tmp_path, steps, TP_SHARD)
    lost = 0
    for a, b in zip(seen, alone, strict=True):
        own = len(shard_of(len(b), TILE, 2, 0))
        assert torch.equal(a[:own], b[:own])
        assert not a[own:].any()
        lost += len(b) - own
    assert lost > 0


def test_layers_of_later_stages_are_zero_and_others_right(tmp_path, monkeypatch):
    give_threads_capturers(monkeypatch)
    steps = draw_steps(256, 1, seed=4)
    [seen], [alone] = captured_by_leaders(RankLayout(pp=2), tmp_path, steps, PP_STAGE)
    for a, b in zip(seen, alone, strict=True):
        assert torch.equal(a[:, :2], b[:, :2])  # layers 1 and 2 of the first stage's 0 to 2
        assert not a[:, 2:].any()


@pytest.mark.parametrize(
    "mode, starts",
    [(ForwardMode.VERIFY, 2), (ForwardMode.PREFILL, 10)],
    ids=["verify", "prefill-is-right"],
)
def test_a_slice_begins_behind_the_requests_of_the_ranks_before(tmp_path, monkeypatch, mode, starts):
    give_threads_capturers(monkeypatch)
    first = verify_step(mode, [1, 2, 3, 4, 5], [6, 7, 8, 9, 10])
    second = verify_step(mode, [11, 12, 13, 14, 15])
    seen, alone = captured_by_leaders(RankLayout(dp=2), tmp_path, [[first, second]], DP_SLICE)
    assert torch.equal(seen[0][0], alone[0][0])
    common = torch.cat([alone[0][0], alone[1][0]])
    assert torch.equal(seen[1][0], common[starts : starts + 5])


def test_one_token_a_request_hides_a_slice_by_requests(tmp_path, monkeypatch):
    give_threads_capturers(monkeypatch)
    step = [verify_step(ForwardMode.DECODE, [1], [2]), verify_step(ForwardMode.DECODE, [3])]
    seen, alone = captured_by_leaders(RankLayout(dp=2), tmp_path, [step], DP_SLICE)
    for a, b in zip(seen, alone, strict=True):
        assert torch.equal(a[0], b[0])


def test_faults_leave_tokens_alone(tmp_path, monkeypatch):
    give_threads_capturers(monkeypatch)
    layout, serving = RankLayout(2, 2, 2), Serving()
    steps = draw_steps(256, 2, seed=5)[:3]
    faulty = replace(serving, faults=ActiveFaults.of([DP_SLICE, TP_SHARD, PP_STAGE]))
    results = on_ranks(layout, tmp_path, lambda ranks: run_rank(faulty, ranks, steps))
    for dp, rank in enumerate(layout.leaders()):
        for a, b in zip(results[rank][0], run_alone(serving, steps, dp)[0], strict=True):
            assert torch.equal(a.logits, b.logits)
