"""What bit-exactness costs: one forward of a model in deterministic mode against the ordinary mode.

    python benchmarks/deterministic_step.py [MODEL] [--dtype float32|bfloat16] [--threads 1] [--repeats 30]

Both modes run in turn, in one process. Prints milliseconds of CPU time a forward (median), which other
work on the machine disturbs less than wall time, and the ratio ordinary / deterministic: 1 is free.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import torch

from moeinspect.runtime.forward_batch import ForwardBatch, ForwardMode
from moeinspect.runtime.memory.kv_cache import KVCache, KVShape
from moeinspect.runtime.models.loader import load_model
from moeinspect.runtime.models.qwen3_moe import Qwen3MoeForCausalLM

# (requests, rows of each, position of the first row, mode)
STEPS = {
    "decode 1": (1, 1, 50, ForwardMode.DECODE),
    "decode 4": (4, 1, 50, ForwardMode.DECODE),
    "decode 16": (16, 1, 50, ForwardMode.DECODE),
    "verify 4 x 5": (4, 5, 50, ForwardMode.VERIFY),
    "prefill 64": (1, 64, 0, ForwardMode.PREFILL),
    "prefill 512": (1, 512, 0, ForwardMode.PREFILL),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="builtin:tiny")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    modes = [load(options.model, getattr(torch, options.dtype), exact) for exact in (True, False)]
    print(f"{options.model}, {options.dtype}, {options.threads} thread(s), load {os.getloadavg()[0]:.1f}")
    for name, step in STEPS.items():
        exact, ordinary = measure(modes, step, options.repeats)
        print(
            f"{name:13} deterministic {exact:7.2f} ms, ordinary {ordinary:7.2f} ms, "
            f"ratio {ordinary / exact:.2f}"
        )


def load(model: str, dtype: torch.dtype, deterministic: bool) -> Qwen3MoeForCausalLM:
    loaded = load_model(model, dtype=dtype, deterministic=deterministic)
    loaded.init_topk_backend("torch")
    return loaded


def measure(
    modes: list[Qwen3MoeForCausalLM], step: tuple[int, int, int, ForwardMode], repeats: int
) -> list[float]:
    batch = make_batch(*step, modes[0].config.vocab_size)
    caches = [make_cache(model, int(batch.slot_table.max()) + 1) for model in modes]
    times: list[list[float]] = [[], []]
    for _ in range(repeats + 2):
        for seen, model, cache in zip(times, modes, caches, strict=True):
            start = time.process_time()
            model.forward(batch, cache)
            seen.append(time.process_time() - start)
    return [1e3 * statistics.median(seen[2:]) for seen in times]


def make_batch(requests: int, rows: int, start: int, mode: ForwardMode, vocab_size: int) -> ForwardBatch:
    context = start + rows
    table = torch.arange(requests * context).view(requests, context) + 1
    generator = torch.Generator().manual_seed(0)
    wanted = torch.arange(requests * rows) if mode is not ForwardMode.PREFILL else torch.tensor([rows - 1])
    return ForwardBatch(
        mode=mode,
        input_ids=torch.randint(vocab_size, (requests * rows,), generator=generator),
        positions=torch.arange(start, context).repeat(requests),
        out_slots=table[:, start:].flatten(),
        row_request=torch.arange(requests).repeat_interleave(rows),
        extend_lens=(rows,) * requests,
        slot_table=table,
        logit_rows=wanted,
    )


def make_cache(model: Qwen3MoeForCausalLM, num_slots: int) -> KVCache:
    config = model.config
    return KVCache(
        KVShape(config.num_hidden_layers, num_slots, config.num_key_value_heads, config.head_dim, model.dtype)
    )


if __name__ == "__main__":
    main()
