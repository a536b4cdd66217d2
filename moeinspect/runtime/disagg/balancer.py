"""Starts the workers, gives both of them every request, and merges what they answer."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TypeVar

from moeinspect.errors import EngineError
from moeinspect.runtime.capture.collector import CollectedRows
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.device.stream import Jitter
from moeinspect.runtime.disagg.channel import Channels
from moeinspect.runtime.disagg.merge import merge_rows
from moeinspect.runtime.disagg.messages import (
    DecodeAnswer,
    Failed,
    Goodbye,
    PrefillAnswer,
    Ready,
    Shutdown,
    Submit,
    WorkerMessage,
)
from moeinspect.runtime.disagg.shared_region import SharedRegion
from moeinspect.runtime.disagg.worker_args import WORKER_NAMES, WorkerArgs
from moeinspect.runtime.disagg.worker_process import worker_main
from moeinspect.runtime.faults import NO_MERGE
from moeinspect.runtime.memory.kv_cache import KVShape
from moeinspect.runtime.plan import Plan
from moeinspect.runtime.records import Event, FinishedRequest
from moeinspect.runtime.results import finished_request

_M = TypeVar("_M", Ready, Goodbye)

EXIT_GRACE_S = 0.5
"""How long a worker may take to end by itself before it is killed."""

BODY = "moeinspect.runtime.disagg.worker_process"


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C waits while a process starts; what starts here inherits that it is deaf to it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(process: BaseProcess) -> None:
    try:
        with _interrupts_held():
            process.start()
    except (EOFError, OSError) as error:
        raise EngineError(f"the {process.name} worker could not be started: {error}") from error


@dataclass(slots=True)
class _Worker:
    name: str
    process: BaseProcess
    connection: Connection
    ended: bool = False


class Balancer:
    """The process that the user started. It holds no model and no KV, only answers."""

    def __init__(
        self,
        config: RunConfig,
        plan: Plan,
        kv_shapes: Sequence[KVShape],
        eos_token_ids: frozenset[int],
        jitter: Jitter | None = None,
    ) -> None:
        self._merges = NO_MERGE not in config.faults
        self._prefill_rows: dict[str, CollectedRows] = {}
        self._decoded: dict[str, DecodeAnswer] = {}
        self._pending: dict[str, Submit] = {}
        self._events: list[Event] = []
        # A fork server imports torch once and forks workers from a process that has no threads.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([BODY])
        regions = [SharedRegion(shape.num_bytes) for shape in kv_shapes]
        peers = context.Pipe()
        self._workers: list[_Worker] = []
        try:
            for index, (name, peer) in enumerate(zip(WORKER_NAMES, peers, strict=True)):
                ours, theirs = context.Pipe()
                args = WorkerArgs(index, config, plan, eos_token_ids, regions, Channels(theirs, peer), jitter)
                process = context.Process(target=worker_main, args=(args,), name=name, daemon=True)
                _start(process)
                self._workers.append(_Worker(name, process, ours))
                theirs.close()
        except BaseException:
            self.close()
            raise
        finally:
            for peer in peers:
                peer.close()
            for region in regions:
                region.close()

    def run(self, requests: Sequence[Submit]) -> Iterator[FinishedRequest]:
        """Runs the requests to their ends; yields each as its two answers are in.

        Raises:
            EngineError: a worker failed or died, or the two answers do not fit together.
        """
        self._pending = {request.prompt.id: request for request in requests}
        for _ in range(len(self._workers)):
            self._expect(Ready)
        for request in requests:
            self._send_all(request)
        while self._pending:
            for message in self._receive():
                request_id = self._take(message)
                if request_id in self._decoded and (request_id in self._prefill_rows):
                    yield self._finish(request_id)
        self._send_all(Shutdown())
        for _ in range(len(self._workers)):
            self._events.extend(self._expect(Goodbye).events)

    def drain_events(self) -> list[Event]:
        """The workers' events that have arrived since the last call."""
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """Ends the workers in bounded time; those that have work left are killed."""
        deadline = time.monotonic() + EXIT_GRACE_S
        for worker in self._workers:
            worker.connection.close()
        for worker in self._workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.process.close()
        self._workers = []

    def _take(self, message: WorkerMessage) -> str:
        if isinstance(message, PrefillAnswer):
            self._prefill_rows[message.request_id] = message.rows
        elif isinstance(message, DecodeAnswer):
            self._decoded[message.request_id] = message
        else:
            raise EngineError(f"a worker sent {type(message).__name__} while requests were running")
        self._events.extend(message.events)
        return message.request_id

    def _finish(self, request_id: str) -> FinishedRequest:
        prompt = self._pending.pop(request_id).prompt
        answer = self._decoded.pop(request_id)
        prefill_rows = self._prefill_rows.pop(request_id)
        rows = answer.rows
        if self._merges:
            rows = merge_rows(request_id, prefill_rows, rows, len(prompt.prompt_ids), len(answer.output_ids))
        return finished_request(
            prompt,
            answer.output_ids,
            answer.finish_reason,
            rows,
            num_drafted=answer.num_drafted,
            num_accepted=answer.num_accepted,
        )

    def _send_all(self, message: Submit | Shutdown) -> None:
        for worker in self._workers:
            try:
                worker.connection.send(message)
            except (BrokenPipeError, ConnectionError):
                self._raise_death()

    def _expect(self, kind: type[_M]) -> _M:
        while True:
            for message in self._receive(one=True):
                if isinstance(message, kind):
                    return message
                raise EngineError(f"a worker sent {type(message).__name__}, not {kind.__name__}")

    def _receive(self, *, one: bool = False) -> Iterator[WorkerMessage]:
        """Messages that have arrived, after waiting for at least one; notices workers that died."""
        by_connection = {worker.connection: worker for worker in self._workers if not worker.ended}
        for ready in wait(list(by_connection)):
            worker = by_connection[ready]  # type: ignore[index]
            try:
                message: WorkerMessage = worker.connection.recv()
            except (EOFError, ConnectionError):
                self._raise_death()
            if isinstance(message, Failed):
                raise EngineError(f"the {worker.name} worker failed: {message.message}", message.hint)
            worker.ended = isinstance(message, Goodbye)
            yield message
            if one:
                return

    def _raise_death(self) -> None:
        """Names the worker that died; one that ended well because the other was gone is not it."""
        deadline = time.monotonic() + EXIT_GRACE_S
        for worker in self._workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
        dead = [worker for worker in self._workers if worker.process.exitcode is not None]
        culprit = next((worker for worker in dead if worker.process.exitcode != 0), None)
        if culprit is None:
            raise EngineError("a worker closed its connection before its requests had ended")
        code = culprit.process.exitcode or 0
        how = f"was killed by signal {-code}" if code < 0 else f"exited with status {code}"
        raise EngineError(
            f"the {culprit.name} worker (pid {culprit.process.pid}) {how}",
            "requests that had ended are in the trace; see the system log for what ended it",
        )
