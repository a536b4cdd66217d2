"""The switches by which a run differs from target-only, and the same run with fewer of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.contradictions import settle_contradictions
from moeinspect.runtime.resolve import TARGET_ONLY

SWITCHES = (
    "draft",
    "overlap",
    "disagg",
    "graph",
    "backend",
    "draft_topk",
    "prefix_cache",
    "host_kv_slots",
    "max_running_requests",
    "chunked_prefill_size",
    "redundant_experts",
    "tp_size",
    "dp_size",
    "pp_size",
    "fused_shared_expert",
    "weight_updates",
    "num_kv_slots",
    "adaptive_draft",
    "stream",
    "decode_workers",
    "prefill_workers",
    "transfer",
    "deterministic",
)
"""Fields of `RunConfig`, those first under which most of the known bugs were reported."""

_OFF: dict[str, Any] = TARGET_ONLY | {"num_kv_slots": None, "deterministic": True}
"""The value of each that a target-only run has."""


def switches_on(config: RunConfig) -> tuple[str, ...]:
    """The switches by which `config` differs from target-only, likeliest first."""
    return tuple(name for name in SWITCHES if getattr(config, name) != _OFF[name])


def with_only(config: RunConfig, switches: Collection[str]) -> RunConfig:
    """`config` with every switch off but `switches`, and without what means nothing then."""
    off = {name: _OFF[name] for name in SWITCHES if name not in switches}
    return settle_contradictions(replace(config, target_only=False, **off), frozenset(), [])
