"""The options of a run, which `capture` and `disagg-sim` share; `_binding.bind` turns fields into options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from moeinspect.commands._choices import Backend, Dtype, Engine
from moeinspect.commands._declare import (
    DRAFT,
    LATER,
    MACHINE,
    RECORDING,
    REQUESTS,
    SCHEDULING,
    option,
    within,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What a run of the runtime takes; the names are those of `runtime.config.RunConfig`."""

    prompts: Annotated[
        str | None,
        option(
            "--prompts",
            panel=REQUESTS,
            metavar="FILE",
            help="Requests, one JSON object a line; - reads stdin. Without it: the built-in prompts.",
        ),
    ] = None
    max_new_tokens: Annotated[
        int,
        option(
            "--max-new-tokens",
            panel=REQUESTS,
            metavar="N",
            callback=within(1),
            help="Output tokens per request.",
        ),
    ] = 32
    temperature: Annotated[
        float,
        option(
            "--temperature",
            panel=REQUESTS,
            metavar="T",
            callback=within(0),
            help="Sampling temperature; 0 is greedy.",
        ),
    ] = 0.0
    top_p: Annotated[
        float,
        option(
            "--top-p",
            panel=REQUESTS,
            metavar="P",
            callback=within(0, 1, above=True),
            help="Nucleus of sampling.",
        ),
    ] = 1.0
    top_k: Annotated[
        int,
        option(
            "--top-k",
            panel=REQUESTS,
            metavar="K",
            callback=within(0),
            help="Sample among the K likeliest tokens; 0: among all.",
        ),
    ] = 0
    ignore_eos: Annotated[
        bool,
        option(
            "--ignore-eos", panel=REQUESTS, help="Do not stop at the end-of-text token.", show_default=False
        ),
    ] = False
    seed: Annotated[
        int,
        option(
            "--seed", panel=REQUESTS, metavar="N", callback=within(0, 2**63 - 1), help="Seed of sampling."
        ),
    ] = 0
    overlap: Annotated[
        bool,
        option(
            "--overlap/--no-overlap",
            panel=SCHEDULING,
            help="Schedule the next step while the device runs this one.",
        ),
    ] = True
    disagg: Annotated[
        bool,
        option("--disagg/--no-disagg", panel=SCHEDULING, help="Prefill and decode in separate processes."),
    ] = False
    chunked_prefill_size: Annotated[
        int,
        option(
            "--chunked-prefill-size",
            panel=SCHEDULING,
            metavar="N",
            callback=within(1),
            help="Most prompt tokens in one forward.",
        ),
    ] = 64
    max_running_requests: Annotated[
        int,
        option(
            "--max-running-requests",
            panel=SCHEDULING,
            metavar="N",
            callback=within(1),
            help="Most requests at a time.",
        ),
    ] = 16
    num_kv_slots: Annotated[
        int | None,
        option(
            "--num-kv-slots",
            panel=SCHEDULING,
            metavar="N",
            callback=within(1),
            help="Tokens that the KV cache holds. Without it: enough for the requests that run at a time.",
        ),
    ] = None
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
    draft: Annotated[
        str,
        option(
            "--draft",
            panel=DRAFT,
            metavar="MODEL",
            help="Draft model: a checkpoint folder, builtin:tiny-draft, builtin:random-draft or none.",
        ),
    ] = "none"
    num_draft_tokens: Annotated[
        int,
        option(
            "--num-draft-tokens",
            panel=DRAFT,
            metavar="N",
            callback=within(1),
            help="Tokens proposed per step.",
        ),
    ] = 4
    deterministic: Annotated[
        bool,
        option(
            "--deterministic/--no-deterministic",
            panel=MACHINE,
            help="The same bits whatever the batch, chunk or worker; or the ordinary, faster kernels.",
        ),
    ] = True
    backend: Annotated[
        Backend, option("--backend", panel=MACHINE, help="What computes the router's top-k.")
    ] = Backend.TORCH
    device: Annotated[str, option("--device", panel=MACHINE, metavar="DEVICE", help="Where to run.")] = "cpu"
    dtype: Annotated[Dtype, option("--dtype", panel=MACHINE, help="Type of weights and activations.")] = (
        Dtype.FLOAT32
    )
    threads: Annotated[
        int,
        option(
            "--threads",
            panel=MACHINE,
            metavar="N",
            callback=within(1, 1024),
            help="CPU threads of every worker.",
        ),
    ] = 1
    weights: Annotated[
        bool,
        option("--weights/--no-weights", panel=RECORDING, help="Record the routing weights, too."),
    ] = False
    margins: Annotated[
        bool,
        option(
            "--margins/--no-margins",
            panel=RECORDING,
            help="Record by how much the last chosen expert won, too.",
        ),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LaterRunOptions:
    """Options of a run that this version knows by name only (see `_later`)."""

    stop: Annotated[list[str], option("--stop", panel=LATER, metavar="STR", help="Stop at this text.")] = (
        field(default_factory=list)
    )
    draft_topk: Annotated[
        int,
        option(
            "--draft-topk", panel=LATER, metavar="N", callback=within(1), help="Branches of the draft's tree."
        ),
    ] = 1
    adaptive_draft: Annotated[
        bool,
        option("--adaptive-draft", panel=LATER, help="Fit the draft's length.", show_default=False),
    ] = False
    prefix_cache: Annotated[
        bool,
        option("--prefix-cache/--no-prefix-cache", panel=LATER, help="Reuse the KV of shared prefixes."),
    ] = False
    host_kv_slots: Annotated[
        int,
        option(
            "--host-kv-slots", panel=LATER, metavar="N", callback=within(0), help="KV kept in host memory."
        ),
    ] = 0
    graph: Annotated[bool, option("--graph/--no-graph", panel=LATER, help="Replay captured graphs.")] = False
    redundant_experts: Annotated[
        int,
        option(
            "--redundant-experts",
            panel=LATER,
            metavar="N",
            callback=within(0),
            help="Copies of loaded experts.",
        ),
    ] = 0
    fused_shared_expert: Annotated[
        bool,
        option(
            "--fused-shared-expert", panel=LATER, help="The shared expert as a column.", show_default=False
        ),
    ] = False
    dp_size: Annotated[
        int, option("--dp-size", panel=LATER, metavar="N", callback=within(1), help="Data-parallel ranks.")
    ] = 1
    tp_size: Annotated[
        int, option("--tp-size", panel=LATER, metavar="N", callback=within(1), help="Tensor-parallel ranks.")
    ] = 1
    pp_size: Annotated[
        int, option("--pp-size", panel=LATER, metavar="N", callback=within(1), help="Pipeline stages.")
    ] = 1
    engine: Annotated[Engine, option("--engine", panel=LATER, help="Who runs the model.")] = Engine.LOCAL
    url: Annotated[
        str | None, option("--url", panel=LATER, metavar="URL", help="Address of a running engine.")
    ] = None
    replay: Annotated[
        str | None, option("--replay", panel=LATER, metavar="TRACE", help="Force a trace's routing.")
    ] = None
