"""Experts: rows are sorted to them without loss, and only the chosen ones run."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinspect.errors import EngineError
from moeinspect.runtime.layers.dispatch import plan_dispatch
from moeinspect.runtime.layers.experts import Experts
from moeinspect.runtime.layers.linear import Linear
from moeinspect.runtime.layers.moe import MoELayer
from moeinspect.runtime.topk.backend import TopKOutput
from moeinspect.runtime.topk.config import TopKConfig


def choose(rows, num_experts, top_k, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randperm(num_experts, generator=generator)[:top_k] for _ in range(rows)])
    return TopKOutput(ids.int(), torch.rand(rows, top_k, generator=generator))


def draw_experts(num_experts, hidden, width, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    gate_up = torch.randn(num_experts, 2 * width, hidden, generator=generator) / hidden**0.5
    down = torch.randn(num_experts, hidden, width, generator=generator) / width**0.5
    return gate_up.to(dtype), down.to(dtype)


def by_definition(x, chosen, gate_up, down):
    width = down.shape[-1]
    out = torch.zeros_like(x, dtype=torch.float64)
    for row in range(x.shape[0]):
        for expert, weight in zip(chosen.ids[row].tolist(), chosen.weights[row].double(), strict=True):
            both = gate_up[expert].double() @ x[row].double()
            hidden = torch.nn.functional.silu(both[:width]) * both[width:]
            out[row] += weight * (down[expert].double() @ hidden)
    return out


@pytest.mark.parametrize("tiled", [True, False])
@pytest.mark.parametrize(("rows", "num_experts", "top_k"), [(1, 8, 2), (9, 8, 8), (40, 3, 1), (33, 60, 5)])
def test_the_weighted_sum_equals_the_definition(tiled, rows, num_experts, top_k):
    gate_up, down = draw_experts(num_experts, 24, 20)
    x = torch.randn(rows, 24, generator=torch.Generator().manual_seed(2))
    chosen = choose(rows, num_experts, top_k)
    seen = Experts(gate_up, down, tiled=tiled)(x, chosen)
    exact = by_definition(x, chosen, gate_up, down)
    torch.testing.assert_close(seen.double(), exact, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_bits_of_a_row_do_not_depend_on_who_else_chose_its_experts(dtype):
    experts = Experts(*draw_experts(8, 24, 20, dtype), tiled=True)
    row = torch.randn(24, generator=torch.Generator().manual_seed(3)).to(dtype)
    mine = choose(1, 8, 3, seed=9)
    seen = set()
    for rows, place in ((1, 0), (5, 4), (30, 11), (90, 89)):
        x = torch.randn(rows, 24, generator=torch.Generator().manual_seed(rows)).to(dtype)
        chosen = choose(rows, 8, 3, seed=rows)
        x[place], chosen.ids[place], chosen.weights[place] = row, mine.ids[0], mine.weights[0]
        seen.add(experts(x, chosen)[place].float().numpy().tobytes())
    assert len(seen) == 1


def test_experts_that_nobody_chose_are_not_touched():
    gate_up, down = draw_experts(8, 24, 20)
    chosen = TopKOutput(torch.tensor([[1, 4], [4, 6]], dtype=torch.int32), torch.ones(2, 2))
    gate_up[[0, 2, 3, 5, 7]] = down[[0, 2, 3, 5, 7]] = float("nan")
    assert Experts(gate_up, down, tiled=True)(torch.ones(2, 24), chosen).isfinite().all()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.integers(1, 40).flatmap(
        lambda rows: st.lists(
            st.lists(st.integers(0, 11), min_size=3, max_size=3), min_size=rows, max_size=rows
        )
    ),
    st.sampled_from([None, (8,), (16, 4), (4,)]),
)
def test_every_choice_is_computed_once_by_its_expert(ids, sizes):
    topk_ids = torch.tensor(ids, dtype=torch.int32)
    rows = torch.arange(len(ids)).repeat_interleave(3)
    plan = plan_dispatch(topk_ids.flatten(), rows, 12, sizes)
    expert_of_place = torch.repeat_interleave(torch.tensor(plan.experts), torch.tensor(plan.sizes))
    assert len(set(plan.result_row.tolist())) == topk_ids.numel()
    assert torch.equal(expert_of_place[plan.result_row], topk_ids.flatten().long())
    assert torch.equal(plan.source_row[plan.result_row], rows)
    assert set(plan.experts) == set(topk_ids.flatten().tolist())
    if sizes is not None:
        assert set(plan.sizes) <= set(sizes)
        padding = sum(plan.sizes) - topk_ids.numel()
        assert padding < sizes[-1] * len(set(plan.experts))


def test_a_layer_whose_backend_was_never_initialised_says_so():
    layer = MoELayer(
        3,
        TopKConfig(top_k=2),
        Linear(torch.zeros(4, 8), None, None),
        Experts(*draw_experts(4, 8, 8), tiled=False),
    )
    with pytest.raises(EngineError, match="layer 3"):
        layer(torch.zeros(1, 8), 1)
