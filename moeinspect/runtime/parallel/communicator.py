"""All the groups that one rank belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from moeinspect.runtime.parallel.groups import RankGroup
from moeinspect.runtime.parallel.layout import RankLayout
from moeinspect.runtime.parallel.links import LOOPBACK, Store


class Communicator:
    """How a rank talks to the others of its worker, on the compute stream and inside forwards alone.

    `ep` are all ranks of its pipeline stage: its experts are spread over them. `tp` are those that share
    the heads and rows of its data-parallel rank, `dp` those with its tensor-parallel rank, both within the
    stage. `replica` are all ranks of its data-parallel rank: stages pass hidden states on, and followers send
    to the leader. Groups of the same ranks are one group.
    """

    def __init__(
        self,
        layout: RankLayout,
        rank: int,
        store: Store,
        names: Sequence[str],
        *,
        device: torch.device | None = None,
        host: str = LOOPBACK,
    ) -> None:
        """Meets the other ranks; `names` [layout.size] are for messages. Every rank has to do it.

        Raises:
            EngineError: the others did not come, or this torch has no such backend.
        """
        self.layout = layout
        self.rank = rank
        self.place = layout.place(rank)
        groups: dict[tuple[int, ...], RankGroup] = {}

        def group(kind: str, members: tuple[int, ...]) -> RankGroup:
            if members not in groups:
                groups[members] = RankGroup.open(store, kind, members, rank, names, device=device, host=host)
            return groups[members]

        # Every rank opens its groups in this order, so that none waits for one that waits for another.
        place, same = self.place, layout.ranks_where
        self.ep = group("ep", same(pp=place.pp))
        self.tp = group("tp", same(pp=place.pp, dp=place.dp))
        self.dp = group("dp", same(pp=place.pp, tp=place.tp))
        self.replica = group("replica", same(dp=place.dp))

    @property
    def is_leader(self) -> bool:
        """Whether this rank schedules."""
        return self.place.is_leader

    def stage_neighbour(self, step: int) -> int:
        """The rank with the same rows so many stages later."""
        return self.layout.rank(replace(self.place, pp=self.place.pp + step))

    @property
    def leader(self) -> int:
        """The leader's rank of this data-parallel rank."""
        return self.layout.leaders()[self.place.dp]


def open_lockstep(
    layout: RankLayout, rank: int, store: Store, names: Sequence[str], *, host: str = LOOPBACK
) -> RankGroup:
    """The group of the leaders, for what their hosts agree on between forwards; they alone call it."""
    return RankGroup.open(store, "lockstep", layout.leaders(), rank, names, host=host)
