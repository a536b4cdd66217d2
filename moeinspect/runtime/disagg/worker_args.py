"""What a worker process is started with."""

from __future__ import annotations

from dataclasses import dataclass, field

from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.device.stream import Jitter
from moeinspect.runtime.disagg.channel import Channels
from moeinspect.runtime.disagg.shared_region import SharedRegion
from moeinspect.runtime.parallel.roster import Roster, Seat
from moeinspect.runtime.plan import Plan


@dataclass(frozen=True, slots=True)
class WorkerArgs:
    """What a worker process is started with.

    `regions` hold the KV of decode processes, by process and with the target first: its own for one of a
    decode worker, those of its counterparts for one of a prefill worker; none where KV does not travel by
    shared memory. `rendezvous` is the file that processes meet at for `torch.distributed`.
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
