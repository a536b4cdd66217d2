"""How evenly experts load the slots and ranks that hold them, with and without copies that follow the load.

    python benchmarks/expert_placement.py [MODEL] [--ranks 4] [--copies 8] [--interval 8]

Runs the built-in prompts once and deals the choices of each forward out by the runtime's own placement. Over
every so many forwards, in the mean over layers, prints the load of the busiest slot as a multiple of what an
expert has in the mean, and that of the busiest rank as a multiple of an even share: for every expert once
(the peer), for copies that stay where they were first put, and for copies that are placed by the load before.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
import torch

from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.engine import LocalRuntime
from moeinspect.runtime.layers.placement import LayerPlacement
from moeinspect.runtime.parallel.shard import split


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="builtin:tiny")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--copies", type=int, default=8)
    parser.add_argument("--interval", type=int, default=8)
    options = parser.parse_args()
    num_experts, forwards = routed(options.model)
    print(
        f"{options.model}: {len(forwards)} forwards, {options.ranks} ranks, {options.copies} copies a layer"
    )
    peer = None
    for what, copies, moves in (
        ("every expert once", 0, False),
        ("copies, never moved", options.copies, False),
        (f"copies, placed every {options.interval} forwards", options.copies, True),
    ):
        seen = busiest(forwards, num_experts, options.ranks, copies, options.interval, moves=moves)
        peer = peer or seen
        print(
            f"{what:34} busiest slot {seen[0]:.2f} (ratio to the first {seen[0] / peer[0]:.2f}), "
            f"busiest rank {seen[1]:.2f} (ratio {seen[1] / peer[1]:.2f})"
        )


def routed(model: str) -> tuple[int, list[torch.Tensor]]:
    """Number of experts, and the choices [n, L, K] of each forward."""
    with LocalRuntime(RunConfig(model=model, prefix_cache=False)) as runtime:
        ended = list(runtime.generate(runtime.default_requests()))
        ids = np.concatenate([one.expert_ids for one in ended]).astype(np.int64)
        steps = np.concatenate([one.step for one in ended])
        return runtime.model.num_experts, [torch.from_numpy(ids[steps == step]) for step in np.unique(steps)]


def busiest(
    forwards: Sequence[torch.Tensor],
    num_experts: int,
    num_ranks: int,
    copies: int,
    interval: int,
    *,
    moves: bool,
) -> tuple[float, float]:
    """Mean load of the busiest slot and rank, by that of an expert and of a rank in the mean."""
    slots_of_rank = split(num_experts + copies, num_ranks)
    rank_of_slot = torch.arange(num_ranks).repeat_interleave(torch.tensor([len(s) for s in slots_of_rank]))
    seen = []
    for layer in range(forwards[0].shape[1]):
        placement = LayerPlacement(num_experts, [len(slots) for slots in slots_of_rank])
        for first in range(0, len(forwards) - interval + 1, interval):
            used = torch.zeros(num_experts + copies, dtype=torch.int64)
            for ids in forwards[first : first + interval]:
                slots = placement.physical(ids[:, layer])
                placement.count(slots)
                used += torch.bincount(slots.flatten(), minlength=len(used))
            ranks = torch.bincount(rank_of_slot, weights=used, minlength=num_ranks)
            total = float(used.sum())
            seen.append([float(used.max()) * num_experts / total, float(ranks.max()) * num_ranks / total])
            if moves:
                placement.rebalance()
    slot, rank = np.mean(seen, axis=0).tolist()
    return slot, rank


if __name__ == "__main__":
    main()
