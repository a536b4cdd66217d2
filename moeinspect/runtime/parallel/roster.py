"""Every process of a run: which worker it belongs to, which rank of it it is, and whom it talks to.

Does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.parallel.layout import RankLayout, RankPlace

UNIFIED, PREFILL, DECODE = "unified", "prefill", "decode"
"""What a worker does: everything, or one side of a disaggregated run."""


@dataclass(frozen=True, slots=True)
class Seat:
    """One process: `index` counts those of the run, `number` the workers of its role."""

    index: int
    role: str
    number: int
    place: RankPlace
    name: str


class Roster:
    """The processes of a run, worker by worker (prefill before decode), rank by rank."""

    def __init__(self, config: RunConfig) -> None:
        self.layout = RankLayout.of(config)
        workers = [(UNIFIED, 0)]
        if config.disagg:
            workers = [(PREFILL, i) for i in range(config.prefill_workers)]
            workers += [(DECODE, i) for i in range(config.decode_workers)]
        self.seats = tuple(
            Seat(
                number_of_worker * self.layout.size + rank,
                role,
                number,
                self.layout.place(rank),
                _name(role, number, self.layout.name(rank)),
            )
            for number_of_worker, (role, number) in enumerate(workers)
            for rank in range(self.layout.size)
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all processes."""
        return tuple(seat.name for seat in self.seats)

    @property
    def is_one_process(self) -> bool:
        """Whether the run needs no process beside the one that the user started."""
        return len(self.seats) == 1

    @property
    def entry(self) -> tuple[int, ...]:
        """Indices of the leaders that requests go to first: of prefill workers, or of the unified one."""
        return self._leaders(UNIFIED, PREFILL)

    @property
    def decode(self) -> tuple[int, ...]:
        """Indices of the leaders of decode workers."""
        return self._leaders(DECODE)

    def team(self, index: int) -> tuple[int, ...]:
        """Indices of the followers of a leader."""
        return tuple(
            seat.index
            for seat in self.seats
            if not seat.place.is_leader and self.leader_of(seat.index) == index
        )

    def leader_of(self, index: int) -> int:
        """Index of the leader of a process's data-parallel rank; of a leader, its own."""
        seat = self.seats[index]
        return self._first(index) + self.layout.rank(RankPlace(seat.place.dp, 0, 0))

    def counterpart(self, index: int, leader: int) -> int:
        """Index of the process that holds in another leader's team what process `index` holds in its own."""
        own, other = self.seats[index].place, self.seats[leader].place
        return self._first(leader) + self.layout.rank(RankPlace(other.dp, own.pp, own.tp))

    def ranks_of_worker(self, index: int) -> range:
        """Indices of all ranks of the worker that a process belongs to."""
        return range(self._first(index), self._first(index) + self.layout.size)

    def links(self) -> list[tuple[int, int]]:
        """Pairs of processes that talk to each other: the two sides' leaders, and each with its followers."""
        pairs = [(prefill, decode) for prefill in self.entry for decode in self.decode]
        return pairs + [(leader, f) for leader in (*self.entry, *self.decode) for f in self.team(leader)]

    def _leaders(self, *roles: str) -> tuple[int, ...]:
        return tuple(seat.index for seat in self.seats if seat.place.is_leader and seat.role in roles)

    def _first(self, index: int) -> int:
        return index // self.layout.size * self.layout.size


def num_processes(config: RunConfig) -> int:
    """How many processes the workers of a run are."""
    workers = config.prefill_workers + config.decode_workers if config.disagg else 1
    return workers * RankLayout.of(config).size


def _name(role: str, number: int, rank: str) -> str:
    if role == UNIFIED:
        return rank or UNIFIED
    return f"{role}-{number}/{rank}" if rank else f"{role}-{number}"
