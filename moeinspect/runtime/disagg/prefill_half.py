"""The prefill side: computes prompts and their first tokens, hands the KV over, answers the prompt's rows."""

from __future__ import annotations

from dataclasses import replace

from moeinspect.runtime.disagg.kv_sender import KVSender, SendPath
from moeinspect.runtime.processes.channel import Inbox
from moeinspect.runtime.processes.messages import (
    KVAborted,
    KVDestination,
    KVReady,
    KVUnwanted,
    RoutedRequest,
)
from moeinspect.runtime.processes.worker_args import WorkerArgs
from moeinspect.runtime.processes.worker_half import Sender, WorkerHalf
from moeinspect.runtime.records import RequestKey
from moeinspect.runtime.scheduler.disagg import PrefillScheduler
from moeinspect.runtime.scheduler.lockstep import Lockstep
from moeinspect.runtime.scheduler.outputs import StepOutputs
from moeinspect.runtime.scheduler.request import Request
from moeinspect.runtime.worker.worker import Worker


class PrefillHalf(WorkerHalf):
    """Runs each prompt and its first token; the rest of the request is the decode worker's."""

    scheduler: PrefillScheduler

    def __init__(
        self, worker: Worker, args: WorkerArgs, inbox: Inbox, lockstep: Lockstep | None, path: SendPath
    ) -> None:
        super().__init__(worker, args, inbox, lockstep)
        self.sender = KVSender(path, self._announce, self._refuse)
        self.scheduler = self._make_scheduler(PrefillScheduler)
        self.scheduler.on_prefilled = self.sender.prefilled
        self._handlers[KVDestination] = self._destination
        self._handlers[KVUnwanted] = self._unwanted

    def _advance(self) -> None:
        for request in self.sender.completed():
            self.scheduler.kv_sent(request)

    def _add(self, routed: RoutedRequest) -> None:
        prompt = replace(
            routed.prompt,
            max_new_tokens=min(1, routed.prompt.max_new_tokens),
            stop=(),
            stop_token_ids=(),
            abort_after=None,
        )
        self.scheduler.add(self._request(prompt, routed.seed))

    def _destination(self, sender: Sender, message: KVDestination) -> None:
        if sender is not None:
            self.sender.destination_known(message.key, sender, message.slots)

    def _unwanted(self, _: Sender, message: KVUnwanted) -> None:
        self.sender.unwanted(message.key)

    def _answer(self, outputs: StepOutputs) -> None:
        super()._answer(outputs)
        for request in outputs.requests:
            if request.finish_reason == "abort":
                self.sender.aborted(request.key)

    def _refuse(self, key: RequestKey, decode: int) -> None:
        self.peers[decode].send(KVAborted(key))

    def _announce(self, request: Request, decode: int, transfer: int) -> None:
        key, first_token = request.key, request.output_ids[0]
        self.peers[decode].send(KVReady(key, request.prompt_len, first_token, transfer, request.last_hidden))
