"""Tiles have the shape that keeps a row's bits: whole vectors, aligned, never split between threads."""

import pytest
import torch

from moeinspect.errors import EngineError
from moeinspect.runtime.layers import tiles
from moeinspect.runtime.layers.tiles import (
    cut,
    elementwise_,
    interchangeable_tiles,
    over_tiles,
    pad_rows,
    product_tiles,
    tile_rows,
)


@pytest.mark.parametrize("widths", [(64,), (100,), (60, 72), (1,), (3, 7), (2048, 768)])
def test_a_tile_of_every_width_holds_whole_vectors(widths):
    rows = tile_rows(*widths)
    assert rows % 4 == 0 and all(rows * width % 64 == 0 for width in widths)
    assert rows == 4 or any((rows - 4) * width % 64 for width in widths)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 40])
def test_padding_adds_zero_rows_up_to_whole_tiles(count):
    x = torch.ones(count, 3, 2)
    padded = pad_rows(x, 16)
    assert padded.shape == (-(-count // 16) * 16, 3, 2)
    assert torch.equal(padded[:count], x) and (padded[count:] == 0).all()


def test_a_row_function_sees_tiles_only():
    shapes = []

    def note(rows):
        shapes.append((tuple(rows.shape), rows.is_contiguous(), rows.data_ptr() % 64))
        return rows * 2

    x = torch.arange(48 * 4, dtype=torch.float32).view(48, 4)
    assert torch.equal(over_tiles(note, x, (16,)), x * 2)
    assert shapes == [((16, 4), True, 0)] * 3
    shapes.clear()
    assert torch.equal(over_tiles(note, x, (32, 8)), x * 2)
    assert [shape for shape, *_ in shapes] == [(32, 4), (8, 4), (8, 4)]


def test_rows_are_cut_into_the_fewest_tiles():
    assert cut(60, (32, 16, 4)) == [32, 16, 4, 4, 4]
    assert cut(0, (32, 16, 4)) == []


def test_a_tile_size_that_changes_any_bit_is_not_used():
    def row_dependent(rows):
        return rows + 1e-3 if rows.shape[0] in (16, 128) else rows * 1.0

    assert interchangeable_tiles(row_dependent, (8,), torch.float32, 4) == (64, 32, 8, 4)
    assert interchangeable_tiles(lambda rows: rows * 1.0, (8,), torch.float32, 4) == (128, 64, 32, 16, 8, 4)


def test_a_machine_that_rounds_by_place_is_refused():
    def place_dependent(rows):
        return rows + torch.arange(rows.shape[0])[:, None] * 1e-3

    with pytest.raises(EngineError, match="--no-deterministic"):
        interchangeable_tiles(place_dependent, (8,), torch.float32, 4)


def test_tiles_of_a_product_are_probed_once_and_not_for_output_heads(monkeypatch):
    assert product_tiles(64, 96, torch.float32, 4)[-1] == 4
    assert product_tiles(64, 96, torch.float32, 4) is product_tiles(64, 96, torch.float32, 4)
    monkeypatch.setattr(tiles, "_LARGEST_PROBED", 100)
    assert product_tiles(64, 97, torch.float32, 4) == (4,)


def test_elementwise_calls_stay_below_the_size_that_threads_share_and_hold_whole_vectors():
    sizes = []

    def note(piece):
        sizes.append(piece.numel())
        return piece.add_(1)

    x = torch.zeros(100, 8, 96)
    assert elementwise_(note, x) is x and (x == 1).all()
    assert sum(sizes) == x.numel() and max(sizes) <= 16384 and all(size % 64 == 0 for size in sizes)


@pytest.mark.parametrize("function", [torch.exp, torch.nn.functional.silu], ids=["exp", "silu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_whole_vectors_round_an_element_the_same_in_every_place(function, dtype):
    """The ground that tiles stand on: within whole vectors the place of an element does not matter."""
    x = torch.linspace(-20, 20, 4096).to(dtype)
    expected = function(x)
    for shift in (1, 5, 16, 31, 33, 63, 100, 2049):
        assert torch.equal(function(x.roll(shift)).roll(-shift), expected)
    assert torch.equal(torch.cat([function(piece) for piece in x.split(64)]), expected)
