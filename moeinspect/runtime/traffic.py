"""Kinds of requests that some faults need before they show; known without torch.

`models/traffic_prompts.py` makes the requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SHARED_PREFIXES = "shared-prefixes"
MIXED_OPT_IN = "mixed-opt-in"
STOPS = "stops"
PREFILL_ONLY = "prefill-only"
CHUNK_SEAMS = "chunk-seams"


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests of one kind.

    `options` holds the fields of `RunConfig` that go with them, unless the user says otherwise.
    """

    name: str
    summary: str
    options: Mapping[str, Any] = field(default_factory=dict)


TRAFFICS: dict[str, Traffic] = {
    traffic.name: traffic
    for traffic in (
        Traffic(
            SHARED_PREFIXES,
            "prompts that begin alike, taking turns, and KV slots for two requests: cached prefixes have to "
            "make room and come back, and slots are used again and again",
            {"max_running_requests": 2},
        ),
        Traffic(
            MIXED_OPT_IN,
            "requests that end in one step, some of which do not ask for their routed experts",
        ),
        Traffic(STOPS, "requests with so many stop tokens that one comes up inside an accepted draft"),
        Traffic(PREFILL_ONLY, "requests for no output token beside ordinary ones"),
        Traffic(CHUNK_SEAMS, "prompts that end a few tokens after the end of a chunk"),
    )
}
