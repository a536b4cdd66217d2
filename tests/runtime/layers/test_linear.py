"""Products on tiles are right, and a row's bits do not depend on what surrounds it."""

import pytest
import torch

from moeinspect.runtime.layers.linear import Linear
from moeinspect.runtime.layers.mlp import swiglu
from moeinspect.runtime.layers.norm import RMSNorm
from moeinspect.runtime.layers.tiles import pad_rows


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("tile", [None, 4, 16])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_product_equals_the_exact_one(tile, with_bias):
    weight, bias, x = draw(24, 64), draw(24, seed=1), draw(48, 64, seed=2)
    seen = Linear(weight, bias if with_bias else None, tile)(x)
    exact = x.double() @ weight.double().t() + (bias.double() if with_bias else 0)
    torch.testing.assert_close(seen.double(), exact, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("fan_in", "fan_out"), [(64, 128), (100, 72), (512, 200), (32, 320)])
def test_the_bits_of_a_row_depend_neither_on_its_place_nor_on_its_neighbours(dtype, fan_in, fan_out):
    linear = Linear(draw(fan_out, fan_in).to(dtype), None, 4)
    row = draw(fan_in, seed=3).to(dtype)
    seen = set()
    for count, place in ((1, 0), (16, 5), (16, 15), (17, 16), (40, 21), (80, 79)):
        x = draw(count, fan_in, seed=count).to(dtype) * 100
        x[place] = row
        seen.add(linear(pad_rows(x, 4))[place].float().numpy().tobytes())
    assert len(seen) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_the_norm_rounds_where_transformers_does(dtype):
    weight, x = draw(64).to(dtype), (draw(32, 64, seed=1) * 3).to(dtype)
    seen = RMSNorm(weight, 1e-6, 16)(x)
    x32 = x.float()
    normalised = x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + 1e-6)
    assert torch.equal(seen, weight * normalised.to(dtype))


@pytest.mark.parametrize("heads", [1, 5, 6])
def test_the_norm_of_a_row_does_not_depend_on_its_place(heads):
    norm = RMSNorm(draw(heads, 24), 1e-6, 8)
    row = draw(heads, 24, seed=3)
    seen = set()
    for count, place in ((16, 0), (16, 15), (48, 17), (64, 63)):
        x = draw(count, heads, 24, seed=count)
        x[place] = row
        seen.add(norm(x)[place].numpy().tobytes())
    assert len(seen) == 1


def test_only_probed_tile_sizes_reach_blas(monkeypatch):
    monkeypatch.setattr("moeinspect.runtime.layers.linear.product_tiles", lambda *_: (8, 4))
    linear = Linear(draw(24, 64), None, 4)
    rows = []
    product = linear._product
    monkeypatch.setattr(linear, "_product", lambda x: rows.append(x.shape[0]) or product(x))
    linear(draw(28, 64))
    assert rows == [8, 8, 8, 4]


def test_silu_sees_contiguous_values_only(monkeypatch):
    seen = []
    silu = torch.nn.functional.silu
    monkeypatch.setattr(
        "torch.nn.functional.silu", lambda x, **options: seen.append(x.is_contiguous()) or silu(x, **options)
    )
    gate_up = draw(16, 64)
    assert torch.equal(swiglu(gate_up), silu(gate_up[:, :32].contiguous()) * gate_up[:, 32:])
    assert seen == [True]
