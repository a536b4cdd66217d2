"""Placement of experts: EPLB's choices, maps that agree, weights that move."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinspect.runtime.layers.eplb import balanced_placement
from moeinspect.runtime.layers.experts import Experts
from moeinspect.runtime.layers.placed_experts import PlacedExperts
from moeinspect.runtime.layers.placement import ExpertPlacement, LayerPlacement
from moeinspect.runtime.topk.backend import TopKOutput

E, R, K = 6, 3, 2


def test_copies_go_to_the_largest_load_per_copy_and_slots_stand_by_their_share():
    # 12 -> 6 + 6 after one copy, then 8 -> 4 + 4, then 6 + 6 -> 4 + 4 + 4.
    assert balanced_placement([1, 12, 3, 8], [7]) == [1, 3, 1, 3, 1, 2, 0]


def test_ranks_get_nearly_the_same_load():
    # The example of DeepSeek's EPLB, with one node: 16 slots on 8 ranks.
    load = [90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86]
    experts = balanced_placement(load, [2] * 8)
    share = [load[e] / experts.count(e) for e in experts]
    ranks = [share[i] + share[i + 1] for i in range(0, 16, 2)]
    assert max(ranks) < 1.12 * sum(load) / 8
    assert max(load) > 1.4 * sum(load) / 8


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=9), st.lists(st.integers(0, 6), min_size=1, max_size=4)
)
def test_every_expert_has_a_slot(load, slots_of_rank):
    slots_of_rank[0] += len(load)
    experts = balanced_placement(load, slots_of_rank)
    assert len(experts) == sum(slots_of_rank)
    assert set(experts) == set(range(len(load)))


def choices(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    heavy = torch.tensor([0.02, 0.5, 0.1, 0.2, 0.08, 0.1])
    return torch.multinomial(heavy.expand(rows, E), K, generator=generator).int()


def test_slots_lead_back_to_the_experts_and_copies_share_the_work():
    placement = LayerPlacement(E, [E + R])
    for seed in range(8):
        ids = choices(seed * 7 + 1, seed)
        slots = placement.physical(ids)
        assert slots.dtype == ids.dtype
        assert torch.equal(placement.expert_of_slot[slots.long()], ids.long())
        placement.count(slots)
        if seed % 3 == 2:
            assert placement.rebalance() is not None
    ids = torch.full((10, 1), 1)
    copies = (placement.expert_of_slot == 1).sum()
    assert copies > 1
    used = torch.bincount(placement.physical(ids).flatten(), minlength=E + R)
    assert used.max() - used[placement.expert_of_slot == 1].min() <= 1


def test_single_rows_go_round_the_copies_too():
    placement = LayerPlacement(E, [E + R])
    copied = int(placement.expert_of_slot.bincount().argmax())
    seen = []
    for _ in range(4):
        slots = placement.physical(torch.tensor([[copied]]))
        placement.count(slots)
        seen.append(slots.item())
    assert seen[0] != seen[1]
    assert seen[:2] == seen[2:]


def test_the_first_placement_is_no_identity_and_a_load_of_nothing_changes_nothing():
    placement = LayerPlacement(E, [E + R])
    before = placement.expert_of_slot.tolist()
    assert before[:E] != list(range(E))
    assert placement.rebalance() is None
    assert placement.expert_of_slot.tolist() == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_weights_move_and_no_bit_changes(dtype):
    generator = torch.Generator().manual_seed(0)
    gate_up = torch.randn(E, 32, 24, generator=generator).to(dtype)
    down = torch.randn(E, 24, 16, generator=generator).to(dtype)
    plain = Experts(gate_up, down, tiled=True)
    placement = LayerPlacement(E, [E + R])
    slots = Experts(gate_up[placement.expert_of_slot], down[placement.expert_of_slot], tiled=True)
    placed = PlacedExperts(slots, placement)
    whole = ExpertPlacement([placed], interval=2)
    seen = []
    for seed in range(6):
        x = torch.randn(seed * 5 + 1, 24, generator=generator).to(dtype)
        chosen = TopKOutput(choices(len(x), seed), torch.rand(len(x), K, generator=generator))
        assert torch.equal(placed(x, chosen), plain(x, chosen))
        whole.forward_ended()
        seen.append(placement.expert_of_slot.tolist())
        assert torch.equal(slots.gate_up, gate_up[placement.expert_of_slot])
        assert torch.equal(slots.down, down[placement.expert_of_slot])
    assert [seen[i] == seen[i + 1] for i in range(5)] == [False, True, False, True, False]
    assert torch.equal(placed.gate_up, gate_up)
    assert torch.equal(placed.down, down)


def test_shared_experts_keep_the_last_slots():
    placement = LayerPlacement(E, [5, 5], num_shared=1)
    for seed in range(4):
        shared = torch.full((9, 1), E, dtype=torch.int32)
        slots = placement.physical(torch.cat([choices(9, seed), shared], dim=1))
        assert (slots[:, -1] == 9).all()
        assert (slots[:, :-1] < 9).all()
        placement.count(slots)
        assert placement.load[E] == 9
        placement.rebalance()


def test_the_load_is_that_of_the_experts_since_the_last_change():
    placement = LayerPlacement(E, [E + R])
    ids = choices(40, 1)
    placement.count(placement.physical(ids))
    assert placement.load.tolist() == torch.bincount(ids.flatten(), minlength=E).tolist()
    placement.rebalance()
    assert not placement.load.any()
