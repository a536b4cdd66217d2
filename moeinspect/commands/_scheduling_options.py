"""Options of a run: how requests are batched, and what goes wrong on purpose."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from moeinspect.commands._declare import MAX_COUNT, SCHEDULING, option, within


@dataclass(frozen=True, kw_only=True)
class SchedulingOptions:
    """How requests are batched, and what goes wrong on purpose."""

    overlap: Annotated[
        bool,
        option(
            "--overlap/--no-overlap",
            panel=SCHEDULING,
            help="Schedule the next step while the device runs this one.",
        ),
    ] = True
    stream: Annotated[
        bool,
        option(
            "--stream/--no-stream",
            panel=SCHEDULING,
            help="Answer every step with its tokens, not every request with all of its tokens.",
        ),
    ] = False
    prefix_cache: Annotated[
        bool,
        option(
            "--prefix-cache/--no-prefix-cache",
            panel=SCHEDULING,
            help="Compute a prefix that several prompts share once.",
        ),
    ] = True
    host_kv_slots: Annotated[
        int,
        option(
            "--host-kv-slots",
            panel=SCHEDULING,
            metavar="N",
            callback=within(0, MAX_COUNT),
            help="Tokens of the prefix cache that find a place in host memory when KV slots run out.",
        ),
    ] = 0
    graph: Annotated[
        bool,
        option(
            "--graph/--no-graph",
            panel=SCHEDULING,
            help="Replay captured graphs over static buffers with padded batches.",
        ),
    ] = False
    chunked_prefill_size: Annotated[
        int,
        option(
            "--chunked-prefill-size",
            panel=SCHEDULING,
            metavar="N",
            callback=within(1, MAX_COUNT),
            help="Most prompt tokens in one forward.",
        ),
    ] = 64
    max_running_requests: Annotated[
        int,
        option(
            "--max-running-requests",
            panel=SCHEDULING,
            metavar="N",
            callback=within(1, MAX_COUNT),
            help="Most requests at a time.",
        ),
    ] = 16
    num_kv_slots: Annotated[
        int | None,
        option(
            "--num-kv-slots",
            panel=SCHEDULING,
            metavar="N",
            callback=within(1, MAX_COUNT),
            help="Tokens that the KV cache holds. Without it: enough for the requests that run at a time.",
        ),
    ] = None
    weight_update: Annotated[
        list[str],
        option(
            "--weight-update",
            panel=SCHEDULING,
            metavar="STEP:MODEL",
            help="From this step on the weights of MODEL serve; running requests are retracted and computed "
            "again; may be repeated.",
            show_default=False,
        ),
    ] = field(default_factory=list)
    target_only: Annotated[
        bool,
        option(
            "--target-only",
            panel=SCHEDULING,
            help="The reference run: one process, one request at a time, whole prompts, no draft.",
            show_default=False,
        ),
    ] = False
    fault: Annotated[
        list[str],
        option(
            "--fault",
            panel=SCHEDULING,
            metavar="NAME",
            help="Commit this known bug on purpose; may be repeated.",
            show_default=False,
        ),
    ] = field(default_factory=list)
    list_faults: Annotated[
        bool, option("--list-faults", panel=SCHEDULING, help="List the faults and exit.", show_default=False)
    ] = False
