"""Attention equals the definition, on any mix of requests, chunk lengths and KV slots."""

import random

import pytest
import torch
from model_harness import make_batch

from moeinspect.runtime.layers.attention import plain_attention, tiled_attention
from moeinspect.runtime.layers.attention_plan import HeadLayout, plan_attention

LAYOUTS = [HeadLayout(4, 2, 16), HeadLayout(6, 2, 8), HeadLayout(3, 3, 24), HeadLayout(32, 1, 16)]
MIXES = {
    "one decode": [(1, 0)],
    "decodes": [(1, 5), (1, 63), (1, 64), (1, 200)],
    "chunks": [(64, 0), (7, 60), (130, 3)],
    "mixed": [(1, 127), (5, 126), (33, 0), (8, 64), (9, 0)],
}


def build(mix, heads, seed=0):
    """A batch with `mix` (rows, position of the first) and random queries, keys and values."""
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    free = rng.sample(range(1, 600), sum(rows + start for rows, start in mix))
    parts = [([0] * rows, start, [free.pop() for _ in range(start + rows)]) for rows, start in mix]
    batch = make_batch(parts)
    queries = torch.randn(batch.num_rows, heads.num_heads, heads.head_dim, generator=generator)
    keys, values = torch.randn(2, 600, heads.num_kv_heads, heads.head_dim, generator=generator)
    keys[0] = values[0] = 0
    return batch, queries, keys, values


def by_definition(batch, queries, keys, values, heads):
    outputs = []
    for row in range(batch.num_rows):
        slots = batch.slot_table[batch.row_request[row], : batch.positions[row] + 1]
        for head in range(heads.num_heads):
            k, v = (t[slots, head // heads.group].double() for t in (keys, values))
            scores = k @ queries[row, head].double() * heads.head_dim**-0.5
            outputs.append(torch.softmax(scores, dim=0) @ v)
    return torch.stack(outputs).view(batch.num_rows, -1)


@pytest.mark.parametrize("heads", LAYOUTS, ids=str)
@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)
def test_it_equals_the_definition(heads, mix):
    batch, queries, keys, values = build(mix, heads)
    exact = by_definition(batch, queries, keys, values, heads)
    tiled = tiled_attention(queries, keys, values, plan_attention(batch, heads), heads)
    torch.testing.assert_close(tiled.double(), exact, rtol=0, atol=2e-6)
    plain = plain_attention(queries, keys, values, batch, heads)
    torch.testing.assert_close(plain.double(), exact, rtol=0, atol=2e-6)


@pytest.mark.parametrize("heads", LAYOUTS[:2], ids=str)
def test_large_scores_do_not_overflow(heads):
    batch, queries, keys, values = build(MIXES["mixed"], heads)
    queries = queries * 1000
    seen = tiled_attention(queries, keys, values, plan_attention(batch, heads), heads)
    exact = by_definition(batch, queries, keys, values, heads)
    torch.testing.assert_close(seen.double(), exact, rtol=0, atol=1e-3)


def test_keys_and_values_that_no_row_may_see_change_no_bit():
    heads = HeadLayout(4, 2, 16)
    batch, queries, keys, values = build(MIXES["mixed"], heads)
    expected = tiled_attention(queries, keys, values, plan_attention(batch, heads), heads)
    seen_slots = {0}
    for request, length in enumerate(batch.extend_lens):
        last = int(batch.positions[batch.row_request == request].max())
        assert length <= last + 1
        seen_slots |= set(batch.slot_table[request, : last + 1].tolist())
    unseen = [slot for slot in range(600) if slot not in seen_slots]
    for garbage in (1e30, float("nan"), float("-inf")):
        keys[unseen] = values[unseen] = garbage
        again = tiled_attention(queries, keys, values, plan_attention(batch, heads), heads)
        assert torch.equal(again, expected)


def test_a_wider_slot_table_changes_no_bit():
    heads = HeadLayout(4, 2, 16)
    batch, queries, keys, values = build(MIXES["decodes"], heads)
    expected = tiled_attention(queries, keys, values, plan_attention(batch, heads), heads)
    batch.slot_table = torch.cat([batch.slot_table, torch.full((4, 500), 77)], dim=1)
    again = tiled_attention(queries, keys, values, plan_attention(batch, heads), heads)
    assert torch.equal(again, expected)


def test_memory_is_bounded_by_cutting_tiles_into_groups(monkeypatch):
    bound = 50_000
    monkeypatch.setattr("moeinspect.runtime.layers.attention_plan._MAX_SCORES", bound)
    heads = HeadLayout(4, 2, 16)
    batch, queries, keys, values = build([(64, 0), (130, 3), (1, 200)], heads)
    plan = plan_attention(batch, heads)
    assert len(plan.groups) > 2
    # A single tile may need more than the bound; no group joins two tiles beyond it.
    for group in plan.groups:
        tiles = len(group.query_index) // (group.size * heads.num_kv_heads)
        assert group.hidden.numel() <= bound or tiles == 1
    monkeypatch.undo()
    whole = tiled_attention(queries, keys, values, plan_attention(batch, heads), heads)
    assert torch.equal(tiled_attention(queries, keys, values, plan, heads), whole)


def test_the_size_of_the_query_tiles_changes_no_bit(monkeypatch):
    for heads in LAYOUTS[:3]:
        batch, queries, keys, values = build(MIXES["mixed"], heads)
        expected = tiled_attention(queries, keys, values, plan_attention(batch, heads), heads)
        sizes = heads.tile_sizes()
        for subset in {sizes[-1:], sizes[-2:], sizes[:1] + sizes[-1:]}:
            monkeypatch.setattr(HeadLayout, "tile_sizes", lambda _, subset=subset: subset)
            plan = plan_attention(batch, heads)
            assert {group.size for group in plan.groups} <= set(subset)
            assert torch.equal(tiled_attention(queries, keys, values, plan, heads), expected)
            monkeypatch.undo()
