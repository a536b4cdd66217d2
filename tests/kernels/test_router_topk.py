"""The Triton kernel equals its torch twin: ids exactly, weights to 1e-6, on awkward sizes.

On a GPU where there is one, else in Triton's interpreter.
"""

import pytest
import torch

from moeinspect.kernels import router_topk as kernel_module
from moeinspect.kernels.router_topk import reference

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
IMPLEMENTATIONS = {"triton": kernel_module.router_topk, "torch": reference.router_topk}
both = pytest.mark.parametrize("router_topk", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS)


@pytest.fixture(autouse=True)
def on_the_device():
    with DEVICE:
        yield


def draw(rows, experts, dtype=torch.float32, seed=0):
    generator = torch.Generator("cpu").manual_seed(seed + rows * 1000 + experts)
    return torch.randn(rows, experts, generator=generator, device="cpu").to(dtype).to(DEVICE)


def capture_dtype(experts):
    return torch.uint8 if experts <= 256 else torch.int16


@pytest.mark.quick(32)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("experts", "k"), [(4, 1), (5, 5), (32, 4), (60, 8), (64, 3), (128, 8), (256, 7), (320, 8)]
)
@pytest.mark.parametrize("rows", [1, 7, 13, 67])
def test_kernel_and_twin_agree(rows, experts, k, dtype):
    logits = draw(rows, experts, dtype)
    for renormalize in (True, False):
        ids, weights = kernel_module.router_topk(logits, k, renormalize=renormalize)
        expected_ids, expected_weights = reference.router_topk(logits, k, renormalize=renormalize)
        assert ids.dtype == torch.int32 and weights.dtype == torch.float32
        assert torch.equal(ids, expected_ids)
        step = 1e-6 if dtype == torch.float32 else torch.finfo(dtype).eps
        torch.testing.assert_close(weights, expected_weights, rtol=step, atol=1e-7)


@both
@pytest.mark.parametrize("rows", [1, 7, 67])
def test_softmax_and_selection_follow_the_definition(router_topk, rows):
    logits = draw(rows, 60)
    ids, weights = router_topk(logits, 8, renormalize=False)
    exact = torch.softmax(logits.double(), dim=-1)
    order = torch.argsort(-logits.double(), dim=-1, stable=True)[:, :8]
    assert torch.equal(ids.long(), order)
    torch.testing.assert_close(weights.double(), exact.gather(1, order), rtol=1e-6, atol=1e-8)
    _, renormalized = router_topk(logits, 8, renormalize=True)
    chosen = exact.gather(1, order)
    torch.testing.assert_close(
        renormalized.double(), chosen / chosen.sum(1, keepdim=True), rtol=1e-6, atol=1e-8
    )


@both
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_of_equal_logits_the_lowest_id_wins(router_topk):
    logits = torch.zeros(5, 64)
    logits[1, 40:44] = 1.0
    logits[2] = torch.arange(64) % 3
    logits[3] = -torch.inf
    logits[4, ::2] = -0.0  # equal to +0.0
    ids, _ = router_topk(logits, 6, renormalize=True)
    assert ids.tolist() == [
        [0, 1, 2, 3, 4, 5],
        [40, 41, 42, 43, 0, 1],
        [2, 5, 8, 11, 14, 17],
        [0, 1, 2, 3, 4, 5],
        [0, 1, 2, 3, 4, 5],
    ]


@both
def test_weights_are_those_that_the_experts_get_in_the_dtype_of_the_logits(router_topk):
    logits = draw(9, 32, torch.bfloat16)
    _, weights = router_topk(logits, 4, renormalize=True)
    assert torch.equal(weights, weights.to(torch.bfloat16).float())
    p = torch.softmax(logits, dim=-1, dtype=torch.float32).topk(4).values
    exact = p / p.sum(-1, keepdim=True)
    assert (weights - exact).abs().max() <= exact.max() * 2**-8


@both
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_nan_ranks_first_and_poisons_only_its_own_row(router_topk):
    logits = draw(4, 16)
    clean = logits.clone()
    logits[1] = torch.nan
    logits[2, 9] = torch.nan
    ids, weights = router_topk(logits, 4, renormalize=True)
    assert ids[1].tolist() == [0, 1, 2, 3] and ids[2, 0] == 9
    assert weights[1:3].isnan().all()
    expected_ids, expected_weights = router_topk(clean, 4, renormalize=True)
    assert torch.equal(ids[[0, 3]], expected_ids[[0, 3]])
    assert torch.equal(weights[[0, 3]], expected_weights[[0, 3]])


@both
@pytest.mark.parametrize("experts", [5, 60, 128, 320])
def test_bits_of_a_row_depend_neither_on_the_number_of_rows_nor_on_its_place(router_topk, experts):
    row = draw(1, experts, seed=7)
    expected = [values.cpu().numpy().tobytes() for values in router_topk(row, 4, renormalize=True)]
    for rows, place in ((2, 1), (7, 3), (16, 15), (17, 16), (33, 8), (67, 66)):
        logits = draw(rows, experts)
        logits[place] = row
        seen = router_topk(logits, 4, renormalize=True)
        assert [values[place].cpu().numpy().tobytes() for values in seen] == expected


@both
def test_strides_of_the_logits_change_no_bit(router_topk):
    logits = draw(13, 32)
    expected = router_topk(logits, 4, renormalize=True)
    for view in (logits.t().contiguous().t(), torch.cat([logits, logits], dim=1)[:, :32]):
        assert not view.is_contiguous()
        seen = router_topk(view, 4, renormalize=True)
        assert torch.equal(seen[0], expected[0]) and torch.equal(seen[1], expected[1])


@both
@pytest.mark.parametrize("experts", [32, 256, 257, 320])
def test_ids_are_captured_into_one_layer_of_the_buffer_and_nowhere_else(router_topk, experts):
    logits = draw(13, experts)
    logits[0, experts - 1] = 100.0  # the largest id is among them
    buffer = torch.full((20, 3, 4), 77, dtype=capture_dtype(experts))
    ids, _ = router_topk(logits, 4, renormalize=True, capture=buffer[:13, 1])
    assert ids[0, 0] == experts - 1
    assert torch.equal(buffer[:13, 1].int(), ids)
    assert (buffer[13:] == 77).all() and (buffer[:, [0, 2]] == 77).all()


@both
def test_ids_above_32767_wrap_into_the_uint16_that_int16_holds(router_topk):
    if router_topk is kernel_module.router_topk:
        experts = 33000
        logits = torch.zeros(1, experts)
        logits[0, experts - 1] = 1.0
        buffer = torch.zeros(1, 1, dtype=torch.int16)
        ids, _ = router_topk(logits, 1, renormalize=True, capture=buffer)
        assert ids.item() == experts - 1 and buffer.item() == experts - 1 - 65536
    else:
        logits = torch.zeros(1, 65535)
        logits[0, 65534] = 1.0
        buffer = torch.zeros(1, 1, dtype=torch.int16)
        router_topk(logits, 1, renormalize=True, capture=buffer)
        assert buffer.item() == -2


@both
def test_no_rows_give_no_rows(router_topk):
    ids, weights = router_topk(torch.zeros(0, 32), 4, renormalize=True)
    assert ids.shape == weights.shape == (0, 4)


@both
@pytest.mark.parametrize(
    ("logits", "top_k", "capture"),
    [
        (torch.zeros(2, 8), 9, None),
        (torch.zeros(2, 8), 0, None),
        (torch.zeros(8), 2, None),
        (torch.zeros(2, 8, dtype=torch.int32), 2, None),
        (torch.zeros(2, 8), 2, torch.zeros(2, 3, dtype=torch.uint8)),
        (torch.zeros(2, 8), 2, torch.zeros(2, 2, dtype=torch.int32)),
        (torch.zeros(2, 300), 2, torch.zeros(2, 2, dtype=torch.uint8)),
    ],
    ids=["k>E", "k=0", "1-D", "integers", "wrong shape", "wrong dtype", "ids do not fit"],
)
def test_impossible_arguments_are_refused(router_topk, logits, top_k, capture):
    with pytest.raises(ValueError, match=r"logits|top_k|capture"):
        router_topk(logits, top_k, renormalize=True, capture=capture)
