"""The router kernel on this machine against its torch twin: microseconds a row.

    python benchmarks/router_topk.py [--experts 128] [--top-k 8] [--repeats 5]

On a GPU the kernel is compiled; without one it runs in Triton's interpreter, which is for tests only.
Both sides run in turn, in one process; prints medians and the ratio twin / kernel.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch

from moeinspect.kernels import router_topk as kernel
from moeinspect.kernels.router_topk import reference


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"{device}, {options.experts} experts, top {options.top_k}, load {os.getloadavg()[0]:.1f}")
    for rows in (1, 8, 64):
        logits = torch.randn(rows, options.experts, device=device)
        sides = [
            lambda logits=logits, side=side: side.router_topk(logits, options.top_k, renormalize=True)
            for side in (kernel, reference)
        ]
        fused, twin = measure(sides, options.repeats)
        print(
            f"{rows:4} rows: kernel {1e6 * fused / rows:9.1f} us a row, "
            f"twin {1e6 * twin / rows:7.1f} us a row, ratio {twin / fused:.4f}"
        )


def measure(sides: list[Callable[[], object]], repeats: int) -> list[float]:
    times: list[list[float]] = [[] for _ in sides]
    for _ in range(repeats + 1):
        for seen, side in zip(times, sides, strict=True):
            start = time.perf_counter()
            side()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            seen.append(time.perf_counter() - start)
    return [statistics.median(seen[1:]) for seen in times]


if __name__ == "__main__":
    main()
