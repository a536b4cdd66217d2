"""What a worker process is started with."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.device.stream import Jitter
from moeinspect.runtime.disagg.shared_region import SharedRegion
from moeinspect.runtime.parallel.links import Store, prefix_store
from moeinspect.runtime.parallel.roster import Roster, Seat
from moeinspect.runtime.plan import Plan
from moeinspect.runtime.processes.channel import Channels
from moeinspect.runtime.processes.rendezvous import open_rendezvous
from moeinspect.runtime.worker.loading import DTYPES


@dataclass(frozen=True, slots=True)
class WorkerArgs:
    """What a worker process is started with.

    `regions` hold the KV of decode processes, by process and with the target first: its own for one of a
    decode worker, those of its counterparts for one of a prefill worker; none where KV does not travel by
    shared memory. `rendezvous` is the address of the place where they meet for `torch.distributed`.
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
    def roster(self) -> Roster:
        """All processes of the run."""
        return Roster(self.config)

    @property
    def seat(self) -> Seat:
        """Which of them this is."""
        return self.roster.seats[self.index]

    def store(self, prefix: str) -> Store:
        """Where processes of the run meet, under a name that tells the occasions apart."""
        return prefix_store(prefix, open_rendezvous(self.rendezvous))

    def own_kv(self) -> list[torch.Tensor] | None:
        """The memory of this process's KV caches, if others reach it, too."""
        return self.kv_of(self.index) if self.index in self.regions else None

    def kv_of(self, index: int) -> list[torch.Tensor]:
        """The memory of a decode process's KV caches; those of this process's share of the models."""
        return [region.tensor().view(DTYPES[self.config.dtype]) for region in self.regions[index]]

    def close_regions(self) -> None:
        """Gives up the handles; what has been mapped stays."""
        for region in (region for of_process in self.regions.values() for region in of_process):
            region.close()
