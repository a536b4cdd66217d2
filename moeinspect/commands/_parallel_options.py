"""Options of a run: ranks of each worker, and where experts are placed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from moeinspect.commands._declare import MAX_COUNT, PARALLEL, option, within

_MOST_RANKS = 64


@dataclass(frozen=True, kw_only=True)
class ParallelOptions:
    """Ranks of each worker, and where experts are placed."""

    dp_size: Annotated[
        int,
        option(
            "--dp-size",
            panel=PARALLEL,
            metavar="N",
            callback=within(1, _MOST_RANKS),
            help="Data-parallel ranks: requests of their own, experts in common.",
        ),
    ] = 1
    tp_size: Annotated[
        int,
        option(
            "--tp-size",
            panel=PARALLEL,
            metavar="N",
            callback=within(1, _MOST_RANKS),
            help="Tensor-parallel ranks: each has a share of the heads, of the experts and of the rows.",
        ),
    ] = 1
    pp_size: Annotated[
        int,
        option(
            "--pp-size",
            panel=PARALLEL,
            metavar="N",
            callback=within(1, _MOST_RANKS),
            help="Pipeline stages: each has a share of the layers.",
        ),
    ] = 1
    redundant_experts: Annotated[
        int,
        option(
            "--redundant-experts",
            panel=PARALLEL,
            metavar="N",
            callback=within(0, 65535),
            help="Copies of loaded experts in each MoE layer; which ones changes with the load.",
        ),
    ] = 0
    rebalance_interval: Annotated[
        int,
        option(
            "--rebalance-interval",
            panel=PARALLEL,
            metavar="N",
            callback=within(1, MAX_COUNT),
            help="Forwards between two placements of the redundant experts.",
        ),
    ] = 8
    fused_shared_expert: Annotated[
        bool,
        option(
            "--fused-shared-expert/--no-fused-shared-expert",
            panel=PARALLEL,
            help="Run the shared expert as one more column of the top-k.",
        ),
    ] = False
