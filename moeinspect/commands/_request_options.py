"""Options of a run: what is asked of the model, and how tokens are sampled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from moeinspect.commands._declare import MAX_COUNT, REQUESTS, option, within


@dataclass(frozen=True, kw_only=True)
class RequestOptions:
    """What is asked of the model, and how tokens are sampled."""

    prompts: Annotated[
        str | None,
        option(
            "--prompts",
            panel=REQUESTS,
            metavar="FILE",
            help="Requests, one JSON object a line; - reads stdin. Without it: the built-in prompts.",
        ),
    ] = None
    traffic: Annotated[
        list[str],
        option(
            "--traffic",
            panel=REQUESTS,
            metavar="NAME",
            help="Made-up requests instead of the built-in prompts: "
            "shared-prefixes, mixed-opt-in, stops, prefill-only or chunk-seams; may be repeated.",
            show_default=False,
        ),
    ] = field(default_factory=list)
    max_new_tokens: Annotated[
        int,
        option(
            "--max-new-tokens",
            panel=REQUESTS,
            metavar="N",
            callback=within(0, MAX_COUNT),
            help="Output tokens per request; 0 computes the prompt only.",
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
            callback=within(0, MAX_COUNT),
            help="Sample among the K likeliest tokens; 0: among all.",
        ),
    ] = 0
    stop: Annotated[
        list[str],
        option(
            "--stop",
            panel=REQUESTS,
            metavar="STR",
            help="End the output at this text; may be repeated.",
            show_default=False,
        ),
    ] = field(default_factory=list)
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
