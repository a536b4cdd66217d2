"""Which ranks a worker has and what they are called. Does not import torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from moeinspect.runtime.config import RunConfig


@dataclass(frozen=True, slots=True)
class RankPlace:
    """One rank of a worker: its data-parallel rank, pipeline stage and tensor-parallel rank."""

    dp: int
    pp: int
    tp: int

    @property
    def is_leader(self) -> bool:
        """Whether this rank schedules: the first one of its data-parallel rank."""
        return self.pp == 0 and self.tp == 0


FIRST = RankPlace(0, 0, 0)
"""The first rank of a worker, which is its only one as a rule."""


@dataclass(frozen=True, slots=True)
class RankLayout:
    """The ranks of each worker of a run.

    Data-parallel ranks have requests, scheduler and KV of their own. Each spreads its layers over `pp`
    stages and, within a stage, heads and rows over `tp` ranks. The experts of a stage's layers are spread
    over all `dp * tp` ranks of the stage (expert parallel), which stand one after another:
    rank = (pp * dp_size + dp) * tp_size + tp.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1

    @classmethod
    def of(cls, config: RunConfig) -> RankLayout:
        """The layout of a run's workers."""
        return cls(config.dp_size, config.tp_size, config.pp_size)

    @property
    def size(self) -> int:
        """Ranks of a worker, each a process."""
        return self.dp * self.tp * self.pp

    @property
    def ep(self) -> int:
        """Ranks over which the experts of a layer are spread."""
        return self.dp * self.tp

    def places(self) -> Iterator[RankPlace]:
        """All ranks in order."""
        return (self.place(rank) for rank in range(self.size))

    def place(self, rank: int) -> RankPlace:
        """Where `rank` stands."""
        stage, in_stage = divmod(rank, self.ep)
        dp, tp = divmod(in_stage, self.tp)
        return RankPlace(dp, stage, tp)

    def rank(self, place: RankPlace) -> int:
        """The number of the rank at `place`."""
        return (place.pp * self.dp + place.dp) * self.tp + place.tp

    def ranks_where(
        self, *, dp: int | None = None, pp: int | None = None, tp: int | None = None
    ) -> tuple[int, ...]:
        """The ranks with these coordinates, in order; None is any."""
        wanted = [(name, value) for name, value in (("dp", dp), ("pp", pp), ("tp", tp)) if value is not None]
        return tuple(
            rank
            for rank in range(self.size)
            if all(getattr(self.place(rank), name) == value for name, value in wanted)
        )

    def leaders(self) -> tuple[int, ...]:
        """The ranks that schedule, by data-parallel rank."""
        return tuple(self.rank(RankPlace(dp, 0, 0)) for dp in range(self.dp))

    def name(self, rank: int) -> str:
        """Such as `dp-1/tp-0`: only what there are several of; empty if there is one rank."""
        place = self.place(rank)
        parts = (("dp", self.dp, place.dp), ("pp", self.pp, place.pp), ("tp", self.tp, place.tp))
        return "/".join(f"{kind}-{number}" for kind, size, number in parts if size > 1)
