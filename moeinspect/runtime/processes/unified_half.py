"""A worker process that does everything: prefill and decode, for the requests of one data-parallel rank."""

from __future__ import annotations

from moeinspect.runtime.processes.channel import Inbox
from moeinspect.runtime.processes.messages import RoutedRequest
from moeinspect.runtime.processes.worker_args import WorkerArgs
from moeinspect.runtime.processes.worker_half import WorkerHalf
from moeinspect.runtime.scheduler.lockstep import Lockstep
from moeinspect.runtime.scheduler.scheduler import Scheduler
from moeinspect.runtime.worker.worker import Worker


class UnifiedHalf(WorkerHalf):
    """The whole of each request; there is no other side to hand anything over to."""

    def __init__(self, worker: Worker, args: WorkerArgs, inbox: Inbox, lockstep: Lockstep | None) -> None:
        super().__init__(worker, args, inbox, lockstep)
        self.scheduler = self._make_scheduler(Scheduler)

    def _add(self, routed: RoutedRequest) -> None:
        self.scheduler.add(self._request(routed.prompt, routed.seed))

    def _advance(self) -> None:
        """Nothing is transferred."""
