"""What a worker process is started with, and which workers there are."""

from __future__ import annotations

from dataclasses import dataclass, field

from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.device.stream import Jitter
from moeinspect.runtime.disagg.channel import Channels
from moeinspect.runtime.disagg.shared_region import SharedRegion
from moeinspect.runtime.plan import Plan


def prefill_indices(config: RunConfig) -> range:
    """Indices of the prefill workers in `worker_names`."""
    return range(config.prefill_workers)


def decode_indices(config: RunConfig) -> range:
    """Indices of the decode workers in `worker_names`."""
    return range(config.prefill_workers, config.prefill_workers + config.decode_workers)


def worker_names(config: RunConfig) -> tuple[str, ...]:
    """Names of a disaggregated run's workers, prefill first."""
    return (
        *(f"prefill-{i}" for i in range(config.prefill_workers)),
        *(f"decode-{i}" for i in range(config.decode_workers)),
    )


@dataclass(frozen=True, slots=True)
class WorkerArgs:
    """What a worker process is started with.

    `regions` hold the KV of decode workers, by worker and with the target first: all of them for a prefill
    worker, its own for a decode worker; none where KV does not travel by shared memory. `rendezvous` is the
    file that gloo workers meet at.
    """

    index: int
    config: RunConfig
    plan: Plan
    eos_token_ids: frozenset[int]
    channels: Channels
    regions: dict[int, list[SharedRegion]] = field(default_factory=dict)
    rendezvous: str = ""
    jitter: Jitter | None = None

    @property
    def is_decode(self) -> bool:
        """Whether this is a decode worker."""
        return self.index in decode_indices(self.config)
