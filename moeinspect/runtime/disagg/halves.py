"""What the prefill worker and the decode worker do with messages, requests and results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from moeinspect.runtime.capture.collector import CollectedRows
from moeinspect.runtime.disagg.channel import Inbox
from moeinspect.runtime.disagg.kv_sender import KVSender
from moeinspect.runtime.disagg.messages import (
    DecodeAnswer,
    KVDestination,
    KVReady,
    PrefillAnswer,
    Shutdown,
    Submit,
)
from moeinspect.runtime.disagg.worker_args import WorkerArgs
from moeinspect.runtime.faults import NO_MERGE
from moeinspect.runtime.memory.kv_cache import KVCache
from moeinspect.runtime.scheduler.disagg import DecodeScheduler, PrefillScheduler
from moeinspect.runtime.scheduler.outputs import StepOutputs
from moeinspect.runtime.scheduler.policy import SchedulePolicy
from moeinspect.runtime.scheduler.request import Request
from moeinspect.runtime.scheduler.scheduler import Scheduler
from moeinspect.runtime.worker.worker import Worker


class WorkerHalf:
    """What both workers share: the inbox, and the loop that fits the run."""

    scheduler: Scheduler

    def __init__(self, worker: Worker, args: WorkerArgs) -> None:
        self.worker = worker
        self.args = args
        self.inbox = Inbox(args.channels)
        self._handlers: dict[type, Callable[[Any], None]] = {Submit: self._submit, Shutdown: self._shutdown}
        self._open = True

    def run(self) -> Iterator[None]:
        """Serves until `Shutdown`."""
        loop = self.scheduler.overlap_loop if self.args.config.overlap else self.scheduler.normal_loop
        return loop(self._receive)

    def _receive(self, idle: bool) -> bool:
        for message in self.inbox.messages(block=idle):
            self._handlers[type(message)](message)
        return self._open

    def _submit(self, message: Submit) -> None:
        raise NotImplementedError

    def _shutdown(self, _: Shutdown) -> None:
        self._open = False

    def _request(self, prompt_message: Submit) -> Request:
        prompt = prompt_message.prompt
        eos = frozenset() if prompt.ignore_eos else self.args.eos_token_ids
        return Request(prompt, prompt_message.seed, eos)


class PrefillHalf(WorkerHalf):
    """Computes prompts, samples the first token, sends the KV, returns the prompt's rows."""

    scheduler: PrefillScheduler

    def __init__(self, worker: Worker, args: WorkerArgs, destinations: list[KVCache]) -> None:
        super().__init__(worker, args)
        self.sender = KVSender(worker.kv_caches, destinations, worker.device, self.inbox.wake)
        self.scheduler = PrefillScheduler(
            worker.runner,
            worker.pool,
            worker.collector,
            worker.device,
            SchedulePolicy(args.config.chunked_prefill_size),
            self._answer,
        )
        self.scheduler.faults = worker.faults
        self.scheduler.on_prefilled = self.sender.prefilled
        self._handlers[KVDestination] = self._destination

    def _receive(self, idle: bool) -> bool:
        is_open = super()._receive(idle)
        self.worker.device.check()
        for request in self.sender.completed():
            first_token = request.output_ids[0]
            self.args.channels.peer.send(KVReady(request.prompt.id, request.prompt_len, first_token))
            self.scheduler.kv_sent(request)
        return is_open

    def _submit(self, message: Submit) -> None:
        # The prompt and one token: the rest is the decode worker's.
        prompt = replace(message.prompt, max_new_tokens=1)
        self.scheduler.add(self._request(replace(message, prompt=prompt)))

    def _destination(self, message: KVDestination) -> None:
        self.sender.destination_known(message.request_id, message.slots)

    def _answer(self, outputs: StepOutputs) -> None:
        for request, rows in zip(outputs.requests, outputs.routed_experts, strict=True):
            if rows is not None:
                answer = PrefillAnswer(request.prompt.id, rows, self.worker.log.drain())
                self.args.channels.balancer.send(answer)


class DecodeHalf(WorkerHalf):
    """Takes over prompts whose KV has arrived, and returns tokens and the rows computed here."""

    scheduler: DecodeScheduler

    def __init__(self, worker: Worker, args: WorkerArgs) -> None:
        super().__init__(worker, args)
        self.scheduler = DecodeScheduler(
            worker.runner,
            worker.pool,
            worker.collector,
            worker.device,
            SchedulePolicy(args.config.chunked_prefill_size),
            self._answer,
        )
        self.scheduler.on_preallocated = self._preallocated
        self.scheduler.collects_prompt_rows = NO_MERGE in worker.faults
        self._handlers[KVReady] = self._kv_ready

    def _submit(self, message: Submit) -> None:
        self.scheduler.add(self._request(message))

    def _preallocated(self, request: Request) -> None:
        slots = request.slots[: request.prompt_len].copy()
        self.args.channels.peer.send(KVDestination(request.prompt.id, slots))

    def _kv_ready(self, message: KVReady) -> None:
        self.scheduler.kv_arrived(message.request_id, message.first_token)

    def _answer(self, outputs: StepOutputs) -> None:
        for request, rows in zip(outputs.requests, outputs.routed_experts, strict=True):
            if rows is not None:
                self._answer_one(request, rows)

    def _answer_one(self, request: Request, rows: CollectedRows) -> None:
        answer = DecodeAnswer(
            request_id=request.prompt.id,
            output_ids=np.asarray(request.output_ids, dtype=np.int32),
            finish_reason=request.finish_reason or "",
            num_drafted=request.num_drafted,
            num_accepted=request.num_accepted,
            rows=rows,
            events=self.worker.log.drain(),
        )
        self.args.channels.balancer.send(answer)
