"""Leaders of data-parallel ranks go step by step together, since their experts are common."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from moeinspect.runtime.parallel.groups import RankGroup
from moeinspect.runtime.scheduler.batch import ScheduledBatch

POLL_S = 0.005
"""How long a leader waits for messages while nobody has anything to run."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One round of a scheduler's loop: what it launches, and whether the loop goes on.

    `joins`: another rank launches a forward and this one has none, so it launches an idle one.
    """

    batch: ScheduledBatch | None
    goes_on: bool
    joins: bool = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing is launched, here or elsewhere."""
        return self.batch is None and not self.joins


class Lockstep:
    """Before each step the leaders of a worker tell each other whether they launch a forward.

    Mirrors `prepare_mlp_sync_batch` of SGLang's data-parallel attention
    (`sglang/srt/managers/scheduler_dp_attn_mixin.py`): every rank takes part in every forward of any of
    them. The loops of all ranks end together, when none has work left.
    """

    def __init__(self, group: RankGroup) -> None:
        """`group` has the leaders of all data-parallel ranks and is used by the host alone."""
        self._group = group

    def turn(self, batch: ScheduledBatch | None, *, has_work: bool) -> Turn:
        """This rank's next round, agreed with the others.

        Raises:
            LinkError: another leader has gone, or did not answer in time.
        """
        mine = torch.tensor([[int(batch is not None), int(has_work)]])
        launches, goes_on = self._group.all_gather(mine).view(-1, 2).any(dim=0).tolist()
        return Turn(batch, goes_on=goes_on, joins=launches and batch is None)
