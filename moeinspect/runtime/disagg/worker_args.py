"""What a worker process is started with."""

from __future__ import annotations

from dataclasses import dataclass

from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.device.stream import Jitter
from moeinspect.runtime.disagg.channel import Channels
from moeinspect.runtime.disagg.shared_region import SharedRegion
from moeinspect.runtime.plan import Plan

PREFILL, DECODE = 0, 1
"""Indices of the workers in `WORKER_NAMES`."""

WORKER_NAMES = ("prefill-0", "decode-0")


@dataclass(frozen=True, slots=True)
class WorkerArgs:
    """What a worker process is started with; `regions` hold the decode worker's KV, target first."""

    index: int
    config: RunConfig
    plan: Plan
    eos_token_ids: frozenset[int]
    regions: list[SharedRegion]
    channels: Channels
    jitter: Jitter | None = None
