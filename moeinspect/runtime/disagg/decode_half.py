"""The decode side: takes over prompts whose KV has arrived, answers tokens and the rows computed here."""

from __future__ import annotations

from moeinspect.runtime.disagg.kv_receiver import KVReceiver, ReceivePath
from moeinspect.runtime.faults import BATCH_INDEX_SWAP, NO_MERGE
from moeinspect.runtime.processes.channel import Inbox
from moeinspect.runtime.processes.messages import (
    Abort,
    KVAborted,
    KVDestination,
    KVReady,
    KVUnwanted,
    RoutedRequest,
)
from moeinspect.runtime.processes.worker_args import WorkerArgs
from moeinspect.runtime.processes.worker_half import Sender, WorkerHalf
from moeinspect.runtime.records import RequestKey
from moeinspect.runtime.scheduler.disagg import DecodeScheduler
from moeinspect.runtime.scheduler.lockstep import Lockstep
from moeinspect.runtime.scheduler.request import Request
from moeinspect.runtime.worker.worker import Worker


class DecodeHalf(WorkerHalf):
    """Allocates a request's KV slots, tells its prefill worker which ones, and decodes from there."""

    scheduler: DecodeScheduler

    def __init__(
        self, worker: Worker, args: WorkerArgs, inbox: Inbox, lockstep: Lockstep | None, path: ReceivePath
    ) -> None:
        super().__init__(worker, args, inbox, lockstep)
        self.receiver = KVReceiver(path, together=BATCH_INDEX_SWAP in worker.faults)
        self.scheduler = self._make_scheduler(DecodeScheduler)
        self.scheduler.on_preallocated = self._preallocated
        self.scheduler.collects_prompt_rows = NO_MERGE in worker.faults
        self._prefill_of: dict[RequestKey, int] = {}
        self._handlers[KVReady] = self._kv_ready
        self._handlers[KVAborted] = self._kv_aborted

    def _advance(self) -> None:
        for message in self.receiver.arrived():
            self.scheduler.kv_arrived(message.key, message.first_token, message.hidden)

    def _add(self, routed: RoutedRequest) -> None:
        self._prefill_of[routed.prompt.key] = routed.prefill
        self.scheduler.add(self._request(routed.prompt, routed.seed))

    def _preallocated(self, request: Request) -> None:
        key = request.key
        slots = request.slots[: request.prompt_len].copy()
        self.receiver.expect(key, slots)
        self.peers[self._prefill_of.pop(key)].send(KVDestination(key, slots))

    def _abort(self, sender: Sender, message: Abort) -> None:
        prefill = self._prefill_of.pop(message.key, None)
        if prefill is not None:
            # It never got slots, so the prefill worker would wait for a destination.
            self.peers[prefill].send(KVUnwanted(message.key))
        super()._abort(sender, message)

    def _kv_aborted(self, _: Sender, message: KVAborted) -> None:
        self.receiver.forget(message.key)
        self.scheduler.kv_aborted(message.key)

    def _kv_ready(self, sender: Sender, message: KVReady) -> None:
        if sender is not None:
            self.receiver.announced(sender, message)
