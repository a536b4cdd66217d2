"""What leaders of all roles share: messages in, answers out, and the loop that fits the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from moeinspect.runtime.answers import AnswerWriter
from moeinspect.runtime.models.tokenizer import Tokenizer, load_tokenizer
from moeinspect.runtime.parallel.commands import Done, Stop
from moeinspect.runtime.parallel.team import LedTeam
from moeinspect.runtime.processes.channel import Inbox, Outbox
from moeinspect.runtime.processes.messages import Abort, Goodbye, Ready, RoutedRequest, Shutdown, Submit
from moeinspect.runtime.processes.worker_args import WorkerArgs
from moeinspect.runtime.records import PromptRequest
from moeinspect.runtime.scheduler.lockstep import POLL_S, Lockstep
from moeinspect.runtime.scheduler.outputs import StepOutputs
from moeinspect.runtime.scheduler.policy import SchedulePolicy
from moeinspect.runtime.scheduler.request import Request
from moeinspect.runtime.scheduler.scheduler import Scheduler
from moeinspect.runtime.worker.worker import Worker

_S = TypeVar("_S", bound=Scheduler)

Sender = int | None
"""Who sent a message: a worker's index, or None for the balancer."""


class WorkerHalf:
    """One side of the hand-off; `inbox` brings what others say, the outboxes carry what it says."""

    scheduler: Scheduler

    def __init__(
        self, worker: Worker, args: WorkerArgs, inbox: Inbox, lockstep: Lockstep | None = None
    ) -> None:
        self.worker = worker
        self.lockstep = lockstep
        self.args = args
        self.inbox = inbox
        self.balancer = Outbox(args.channels.balancer)
        team = args.roster.team(args.index)
        self.peers = {
            index: Outbox(connection)
            for index, connection in args.channels.peers.items()
            if index not in team
        }
        self._writer = AnswerWriter(stream=args.config.stream, faults=worker.faults)
        self._handlers: dict[type, Callable[[Sender, Any], None]] = {
            Submit: self._submit,
            Abort: self._abort,
            Shutdown: self._shutdown,
            Done: self._transfer_done,
        }
        self._tokenizer: Tokenizer | None = None
        self._open = True

    def serve(self) -> None:
        """Answers requests until `Shutdown`."""
        self.balancer.send(Ready())
        loop = self.scheduler.overlap_loop if self.args.config.overlap else self.scheduler.normal_loop
        for _ in loop(self._receive):
            pass
        self.scheduler.pool.check_integrity()
        self.worker.team.tell(Stop())
        self.balancer.send(Goodbye(self.worker.log.drain()))

    def close(self) -> None:
        """Gets the last messages out, in bounded time."""
        for outbox in (*self.peers.values(), self.balancer):
            outbox.close()

    def _make_scheduler(self, kind: type[_S]) -> _S:
        worker = self.worker
        return kind(
            worker.runner,
            worker.pool,
            worker.collector,
            worker.device,
            SchedulePolicy(self.args.config.chunked_prefill_size),
            self._answer,
            faults=worker.faults,
            weight_updates=worker.weight_updates,
            lockstep=self.lockstep,
        )

    def _receive(self, idle: bool) -> bool:
        # In lockstep nobody may sleep until it is woken: others would wait for it.
        timeout = 0.0 if not idle else None if self.lockstep is None else POLL_S
        for sender, message in self.inbox.messages(timeout):
            self._handlers[type(message)](sender, message)
        self.worker.device.check()
        self._advance()
        return self._open

    def _advance(self) -> None:
        """Goes on with transfers that have come to an end."""
        raise NotImplementedError

    def _submit(self, _: Sender, batch: Submit) -> None:
        for routed in batch.requests:
            self._add(routed)

    def _add(self, routed: RoutedRequest) -> None:
        raise NotImplementedError

    def _abort(self, _: Sender, message: Abort) -> None:
        self.scheduler.abort(message.key)

    def _shutdown(self, _: Sender, message: Shutdown) -> None:
        self._open = False

    def _transfer_done(self, sender: Sender, message: Done) -> None:
        if sender is not None and isinstance(self.worker.team, LedTeam):
            self.worker.team.done(sender, message.ticket)

    def _request(self, prompt: PromptRequest, seed: int) -> Request:
        return Request(prompt, seed, self.args.eos_token_ids, self._decode)

    def _decode(self, ids: Sequence[int]) -> str:
        """Text of token ids; the tokenizer is loaded when the first request needs it."""
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self.args.config.model)
        return "" if self._tokenizer is None else self._tokenizer.decode(ids)

    def _answer(self, outputs: StepOutputs) -> None:
        answers = self._writer.write(outputs)
        if answers.keys:
            answers.events = self.worker.log.drain()
            self.balancer.send(answers)
