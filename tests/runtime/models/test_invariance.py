"""What is computed for a token depends, bit for bit, on the tokens before it and on nothing else."""

import random
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_harness import ORACLE, RoutingProbe, bits, load, make_batch, make_kv, run_alone

MODELS = {
    "tiny": "builtin:random",
    "draft": "builtin:random-draft",
    "variants": ORACLE / "checkpoints" / "qwen3_moe-variants",
}
NUM_SLOTS = 1024


@cache
def loaded(name, dtype, deterministic=True):
    model = load(MODELS[name], dtype=dtype, deterministic=deterministic)
    return model, RoutingProbe(model)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run_scattered(model, probe, requests, seed):
    """All requests in random batches and chunks, in scattered KV slots that hold others' leavings."""
    rng = random.Random(seed)
    kv = make_kv(model, NUM_SLOTS)
    torch.manual_seed(seed)
    kv.data[:, :, 1:].normal_(std=30.0)
    free = rng.sample(range(1, NUM_SLOTS), sum(map(len, requests)))
    slots = [[free.pop() for _ in tokens] for tokens in requests]
    done = [0] * len(requests)
    rows = [[] for _ in requests]
    while any(d < len(tokens) for d, tokens in zip(done, requests, strict=True)):
        waiting = [i for i, tokens in enumerate(requests) if done[i] < len(tokens)]
        chosen = rng.sample(waiting, rng.randint(1, len(waiting)))
        ends = [min(len(requests[i]), done[i] + rng.choice([1, 1, 2, 5, 7, 8, 31, 64])) for i in chosen]
        parts = [
            (requests[i][done[i] : end], done[i], slots[i][: rng.choice([end, len(slots[i])])])
            for i, end in zip(chosen, ends, strict=True)
        ]
        computed = (model.forward(make_batch(parts), kv), *probe.rows())
        start = 0
        for i, end in zip(chosen, ends, strict=True):
            stop = start + end - done[i]
            rows[i].append([values[start:stop] for values in computed])
            start, done[i] = stop, end
    return [[torch.cat(parts) for parts in zip(*chunks, strict=True)] for chunks in rows]


def count_differences(model, probe, requests, seed):
    scattered = run_scattered(model, probe, requests, seed)
    differing = 0
    for tokens, seen in zip(requests, scattered, strict=True):
        alone = run_alone(model, probe, tokens, NUM_SLOTS)
        differing += sum(int((bits(a) != bits(b)).sum()) for a, b in zip(seen, alone, strict=True))
    return differing


def draw_requests(vocab_size, lengths, seed):
    rng = random.Random(seed)
    return [[rng.randrange(vocab_size) for _ in range(length)] for length in lengths]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=6, deadline=None, derandomize=True)
@given(lengths=st.lists(st.integers(1, 130), min_size=1, max_size=7), seed=st.integers(0, 10**6))
def test_bits_do_not_depend_on_batch_chunks_slots_or_neighbours(name, dtype, lengths, seed):
    model, probe = loaded(name, dtype)
    requests = draw_requests(model.config.vocab_size, lengths, seed)
    assert count_differences(model, probe, requests, seed) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_two_threads_keep_the_bits_as_well(dtype):
    torch.set_num_threads(2)  # the fixture puts it back
    model, probe = loaded("variants", dtype)
    requests = draw_requests(model.config.vocab_size, [40, 70, 3], 8)
    assert count_differences(model, probe, requests, 8) == 0


def test_the_ordinary_mode_fails_this_test():
    """The check has teeth: without tiles, bits do move with the batch."""
    model, probe = loaded("variants", torch.float32, deterministic=False)
    requests = draw_requests(model.config.vocab_size, [40, 17, 90, 64, 3], 1)
    assert count_differences(model, probe, requests, 1) > 0


def test_a_full_batch_of_long_and_short_requests_keeps_the_bits_when_scores_are_cut_into_groups(monkeypatch):
    monkeypatch.setattr("moeinspect.runtime.layers.attention_plan._MAX_SCORES", 20_000)
    model, probe = loaded("tiny", torch.float32)
    requests = draw_requests(320, [300, 1, 65, 64, 63, 129, 20], 5)
    assert count_differences(model, probe, requests, 5) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_every_number_of_rows_gives_a_row_the_same_bits(dtype):
    model, probe = loaded("tiny", dtype)
    kv = make_kv(model)
    prompt = draw_requests(320, [9], 3)[0]
    model.forward(make_batch([(prompt[:-1], 0, list(range(1, 9)))]), kv)
    seen = set()
    for count in (1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 70):
        parts = [([prompt[-1]], 8, list(range(1, 10)))] + [([i], 0, [20 + i]) for i in range(count - 1)]
        shift = count // 2  # its place among its neighbours moves as well
        logits = model.forward(make_batch(parts[1 : 1 + shift] + parts[:1] + parts[1 + shift :]), kv)
        seen.add((bits(logits[shift]).numpy().tobytes(), bits(probe.rows()[1][shift]).numpy().tobytes()))
    assert len(seen) == 1


def test_a_token_does_not_see_the_tokens_after_it():
    model, probe = loaded("tiny", torch.float32)
    first, second = draw_requests(320, [50, 50], 11)
    shared = 23
    mixed = first[:shared] + second[shared:]
    one, other = run_alone(model, probe, first), run_alone(model, probe, mixed)
    for a, b in zip(one, other, strict=True):
        assert torch.equal(bits(a[:shared]), bits(b[:shared]))
        assert not torch.equal(bits(a[shared:]), bits(b[shared:]))


def test_infinities_left_in_free_slots_do_not_reach_a_result():
    model, probe = loaded("tiny", torch.float32)
    tokens = draw_requests(320, [70], 2)[0]
    expected, *_ = run_alone(model, probe, tokens)
    for garbage in (float("nan"), float("inf")):
        kv = make_kv(model, fill=garbage)
        slots = list(range(1, 71))
        logits = [model.forward(make_batch([(tokens[i : i + 10], i, slots)]), kv) for i in range(0, 70, 10)]
        assert torch.equal(bits(torch.cat(logits)), bits(expected))
