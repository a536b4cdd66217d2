"""Rotary embeddings follow the definition, and an angle depends on its position alone."""

import pytest
import torch

from moeinspect.runtime.layers.rotary import RotaryEmbedding, apply_rotary


def test_it_rotates_pairs_of_channels_by_position_times_frequency():
    x = torch.randn(7, 3, 8, generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([0, 1, 5, 100, 511, 512, 1300])
    cos, sin = RotaryEmbedding(8, 10000.0, torch.float32).tables(positions, 1301)
    seen = apply_rotary(x, cos, sin)
    frequencies = 10000.0 ** (-torch.arange(4, dtype=torch.float64) / 4)
    angles = positions[:, None, None].double() * frequencies
    a, b = x.double().chunk(2, dim=-1)
    exact = torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], dim=-1)
    torch.testing.assert_close(seen.double(), exact, rtol=0, atol=2e-4)
    assert torch.equal(seen[0], x[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_tables_are_the_same_whatever_was_asked_for_before(dtype):
    positions = torch.tensor([3, 700])
    early = RotaryEmbedding(16, 1e6, dtype)
    early.tables(torch.tensor([0]), 1)
    late = RotaryEmbedding(16, 1e6, dtype)
    for a, b in zip(early.tables(positions, 701), late.tables(positions, 2048), strict=True):
        assert a.dtype == dtype and torch.equal(a, b)
