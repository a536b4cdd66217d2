"""A forward over ranks has the bits of a forward on one."""

import pytest
import torch
from model_harness import ORACLE, bits
from rank_harness import Serving, draw_steps, give_threads_capturers, on_ranks, run_alone, run_rank

from moeinspect.errors import EngineError
from moeinspect.runtime.layers.placement import ExpertOptions
from moeinspect.runtime.parallel.layout import RankLayout

CHECKPOINTS = ORACLE / "checkpoints"
BF16 = torch.bfloat16
HASH = "builtin:random-hash"
"""Has layers of either kind of routing."""

SERVINGS = {
    "random": ((2, 2, 2), Serving(HASH)),
    "random-bf16": ((2, 2, 2), Serving(dtype=BF16)),
    "variants": ((1, 2, 2), Serving(CHECKPOINTS / "qwen3_moe-variants")),
    "dp-bf16": ((3, 1, 1), Serving(CHECKPOINTS / "qwen3_moe-hubstyle", dtype=BF16)),
    "pp": ((1, 1, 3), Serving(kept_layers=(1, 3, 6))),
    "graphs": ((2, 2, 1), Serving(HASH, graph=True)),
    "stages-of-graphs": ((1, 2, 2), Serving(graph=True, kept_layers=(6,))),
    "redundant": ((2, 2, 1), Serving(experts=ExpertOptions(redundant=5, rebalance_interval=2))),
    "shared": ((1, 2, 1), Serving("builtin:random-shared", dtype=BF16)),
    "fused": ((2, 2, 1), Serving("builtin:random-shared", graph=True, experts=ExpertOptions(5, 2, True))),
}


def assert_same_bits(seen, expected):
    assert len(seen) == len(expected)
    for a, b in zip(seen, expected, strict=True):
        assert torch.equal(bits(a.logits), bits(b.logits))
        assert (a.hidden is None) == (b.hidden is None)
        if a.hidden is not None:
            assert torch.equal(bits(a.hidden.float()), bits(b.hidden.float()))
        for of_a, of_b in zip(a.captured, b.captured, strict=True):
            assert torch.equal(bits(of_a), bits(of_b))


@pytest.mark.parametrize("name", SERVINGS)
def test_every_rank_count_gives_the_bits_of_one(name, tmp_path, monkeypatch):
    give_threads_capturers(monkeypatch)
    sizes, serving = SERVINGS[name]
    layout = RankLayout(*sizes)
    steps = draw_steps(256, layout.dp, seed=len(name))
    expected = [run_alone(serving, steps, dp) for dp in range(layout.dp)]
    results = on_ranks(layout, tmp_path, lambda ranks: run_rank(serving, ranks, steps))
    for place, (seen, kv) in zip(layout.places(), results, strict=True):
        alone, whole = expected[place.dp]
        if place.is_leader:
            assert_same_bits(seen, alone)
        shape = kv.shape
        heads = slice(place.tp * shape.num_kv_heads, (place.tp + 1) * shape.num_kv_heads)
        layers = slice(shape.first_layer, shape.first_layer + shape.num_layers)
        assert torch.equal(bits(kv.data.float()), bits(whole.data[layers, :, :, heads].float()))


@pytest.mark.parametrize("dtype", [torch.float32, BF16], ids=["fp32", "bf16"])
def test_the_ordinary_mode_stays_close_to_one_rank(dtype, tmp_path, monkeypatch):
    """Heads and experts are summed in parts, so bits differ; how far is a matter of rounding."""
    give_threads_capturers(monkeypatch)
    serving = Serving(
        CHECKPOINTS / "qwen3_moe-variants", dtype=dtype, deterministic=False, graph=dtype is BF16
    )
    layout = RankLayout(2, 2, 2)
    steps = draw_steps(256, layout.dp, seed=7)
    results = on_ranks(layout, tmp_path, lambda ranks: run_rank(serving, ranks, steps))
    differing = 0
    for dp, rank in enumerate(layout.leaders()):
        alone = run_alone(serving, steps, dp)[0]
        for a, b in zip(results[rank][0], alone, strict=True):
            differing += not torch.equal(bits(a.logits), bits(b.logits))
            same = (a.captured[0] == b.captured[0]).all(dim=-1)
            if dtype is torch.float32:
                assert same.all()
                torch.testing.assert_close(a.logits, b.logits, rtol=1e-4, atol=1e-4)
            else:
                assert same.float().mean() > 0.5
    assert differing > 0  # what the deterministic mode is compared by has teeth


def test_a_backend_that_reads_the_weights_of_experts_is_refused(tmp_path):
    def read(ranks):
        with pytest.raises(EngineError, match=r"spread over several ranks.*--backend"):
            _ = Serving().load(ranks)[0].model.layers_with_topk()[0]._experts.gate_up
        return True

    assert all(on_ranks(RankLayout(2), tmp_path, read))
