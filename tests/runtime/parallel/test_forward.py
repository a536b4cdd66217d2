"""A forward over ranks has the bits of a forward on one."""

import random
from dataclasses import replace

import pytest
import torch
from model_harness import ORACLE, RoutingProbe, bits, load, make_batch, make_kv
from rank_harness import on_ranks

from moeinspect.runtime.forward_batch import empty_batch
from moeinspect.runtime.memory.kv_cache import KVCache
from moeinspect.runtime.models.loader import load_model
from moeinspect.runtime.parallel.layout import RankLayout
from moeinspect.runtime.parallel.shard import ModelShard

VARIANTS = ORACLE / "checkpoints" / "qwen3_moe-variants"


def plan_steps(vocab, num_dp, seed):
    """Steps of a batch for each data-parallel rank or None: chunks, single tokens and verify-like runs."""
    rng = random.Random(seed)
    lengths = [[rng.randint(1, 40) for _ in range(rng.randint(1, 3))] for _ in range(num_dp)]
    tokens = [[[rng.randrange(vocab) for _ in range(n)] for n in of_dp] for of_dp in lengths]
    done = [[0] * len(of_dp) for of_dp in lengths]
    steps = []
    while any(d < n for ds, ns in zip(done, lengths, strict=True) for d, n in zip(ds, ns, strict=True)):
        step = []
        for dp in range(num_dp):
            waiting = [i for i, n in enumerate(lengths[dp]) if done[dp][i] < n]
            chosen = [i for i in waiting if rng.random() < 0.8]
            parts = []
            for i in chosen:
                end = min(lengths[dp][i], done[dp][i] + rng.choice([1, 1, 5, 13, 40]))
                slots = [1 + 50 * i + p for p in range(end)]
                parts.append((tokens[dp][i][done[dp][i] : end], done[dp][i], slots))
                done[dp][i] = end
            step.append(parts)
        steps.append(step)
    return steps


def run_alone(model, steps, num_dp):
    """Logits, routing of each step, and the KV at the end, of each data-parallel rank."""
    probe = RoutingProbe(model)
    results = []
    for dp in range(num_dp):
        kv = make_kv(model, 256)
        seen = []
        for step in steps:
            if step[dp]:
                logits = model.forward(make_batch(step[dp]), kv)
                seen.append((logits, *probe.rows()))
        results.append((seen, kv.data))
    return results


def run_on(ranks, name, dtype, steps, deterministic=True):
    model = load_model(str(name), dtype=dtype, deterministic=deterministic, ranks=ranks)
    model.init_topk_backend("torch")
    layout, place = ranks.layout, ranks.place
    kv = KVCache(ModelShard(layout, place).kv_shape(model.config, 256, dtype))
    seen = []
    for step in steps:
        batches = [make_batch(parts) if parts else empty_batch() for parts in step]
        if not any(step):
            continue
        rows = tuple(batch.num_rows for batch in batches)
        batch = replace(batches[place.dp], dp_rows=rows, dp_requests=rows)
        if batch.num_rows == 0:
            model.run_idle(batch)
        else:
            seen.append(model.run(batch, kv).logits)
    return seen, kv


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    "sizes", [(1, 2, 1), (2, 1, 1), (1, 1, 2), (2, 2, 1), (1, 2, 2), (2, 1, 3), (2, 2, 2), (3, 1, 1)]
)
def test_bits(tmp_path, sizes, dtype):
    layout = RankLayout(*sizes)
    name = "builtin:random"
    alone = load(name, dtype)
    steps = plan_steps(alone.config.vocab_size, layout.dp, 0)
    expected = run_alone(alone, steps, layout.dp)
    results = on_ranks(layout, tmp_path, lambda ranks: run_on(ranks, name, dtype, steps))
    for rank, (logits, kv) in enumerate(results):
        place = layout.place(rank)
        want, want_kv = expected[place.dp]
        if place.is_leader:
            assert len(logits) == len(want)
            for a, (b, *_) in zip(logits, want, strict=True):
                assert torch.equal(bits(a), bits(b))
        shape = kv.shape
        heads = slice(place.tp * shape.num_kv_heads, (place.tp + 1) * shape.num_kv_heads)
        layers = slice(shape.first_layer, shape.first_layer + shape.num_layers)
        assert torch.equal(kv.data, want_kv[layers, :, :, heads])
