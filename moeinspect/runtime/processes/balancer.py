"""Spreads requests over the workers' data-parallel ranks, and merges what the two sides of each answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from moeinspect.errors import EngineError
from moeinspect.runtime.answers import Answer, StepAnswers, read_answers
from moeinspect.runtime.client import Client
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.device.stream import Jitter
from moeinspect.runtime.disagg.merge import merge_answers
from moeinspect.runtime.disagg.shared_region import SharedRegion
from moeinspect.runtime.memory.kv_cache import KVShape
from moeinspect.runtime.parallel.layout import RankPlace
from moeinspect.runtime.parallel.roster import DECODE, Roster
from moeinspect.runtime.plan import Plan
from moeinspect.runtime.processes.channel import Channels
from moeinspect.runtime.processes.forked import ForkedProcesses
from moeinspect.runtime.processes.launcher import Launcher
from moeinspect.runtime.processes.messages import Abort, Ready, RoutedRequest, Submit
from moeinspect.runtime.processes.routing import route
from moeinspect.runtime.processes.worker_args import WorkerArgs
from moeinspect.runtime.processes.worker_group import WorkerGroup
from moeinspect.runtime.records import Event, FinishedRequest, PromptRequest, RequestKey
from moeinspect.runtime.results import RowLayout, finished_request


class Balancer:
    """The process that the user started. It holds no model and no KV, only answers."""

    def __init__(
        self,
        config: RunConfig,
        plan: Plan,
        layout: RowLayout,
        kv_shapes: Callable[[RankPlace], Sequence[KVShape]],
        eos_token_ids: frozenset[int],
        jitter: Jitter | None = None,
        launcher: Launcher | None = None,
    ) -> None:
        """Starts the workers, by `launcher` if they are not to be forked here."""
        launcher = launcher or ForkedProcesses()
        self._config = config
        self._layout = layout
        self._client = Client(())
        self._routes: dict[RequestKey, RoutedRequest] = {}
        self._prefilled: dict[RequestKey, Answer] = {}
        self._decoded: dict[RequestKey, Answer] = {}
        self._events: list[Event] = []
        self._roster = roster = Roster(config)
        meets = config.transfer == "gloo" or roster.layout.size > 1
        self._rendezvous = launcher.rendezvous() if meets else None
        path = self._rendezvous.address if self._rendezvous is not None else ""
        regions = {
            seat.index: [SharedRegion(shape.num_bytes) for shape in kv_shapes(seat.place)]
            for seat in roster.seats
            if seat.role == DECODE and config.transfer == "shm"
        }

        def args(index: int, channels: Channels) -> WorkerArgs:
            reached = [index] if index in regions else [roster.counterpart(index, d) for d in roster.decode]
            of_seat = {other: regions[other] for other in reached if other in regions}
            return WorkerArgs(index, config, plan, eos_token_ids, channels, of_seat, path, jitter)

        try:
            self._workers = WorkerGroup(roster.names, roster.links(), args, launcher)
        except BaseException:
            self._end_rendezvous()
            raise
        finally:
            for region in (region for of_worker in regions.values() for region in of_worker):
                region.close()

    def run(self, requests: Sequence[tuple[PromptRequest, int]]) -> Iterator[FinishedRequest]:
        """Runs a batch of requests with their seeds; yields each as the answers of both sides are in.

        Raises:
            EngineError: a worker failed or died, or the two answers do not fit together.
        """
        routed = route(requests, self._roster.entry, self._roster.decode)
        self._client = Client(request.prompt for request in routed)
        self._routes = {request.prompt.key: request for request in routed}
        self._workers.await_each(Ready)
        self._end_rendezvous()
        self._submit(routed)
        self._send_aborts()
        while self._client.is_waiting:
            for worker, message in self._workers.receive():
                if not isinstance(message, StepAnswers):
                    raise EngineError(
                        f"the {worker.name} worker sent {type(message).__name__} while requests were running"
                    )
                self._events.extend(message.events)
                for answer in read_answers(message):
                    yield from self._take(worker.index, answer)
                self._send_aborts()
        for goodbye in self._workers.shut_down():
            self._events.extend(goodbye.events)

    def drain_events(self) -> list[Event]:
        """The workers' events that have arrived since the last call."""
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """Ends the workers in bounded time; those that have work left are killed."""
        self._workers.close()
        self._end_rendezvous()

    def _end_rendezvous(self) -> None:
        if self._rendezvous is not None:
            self._rendezvous.close()

    def _submit(self, routed: list[RoutedRequest]) -> None:
        """One message for each worker that has something to do."""
        for index in (*self._roster.entry, *self._roster.decode):
            batch = tuple(request for request in routed if index in (request.prefill, request.decode))
            if batch:
                self._workers.send(index, Submit(batch))

    def _send_aborts(self) -> None:
        for key in self._client.take_aborts():
            route = self._routes[key]
            for index in (route.prefill, route.decode):
                if index is not None:
                    self._workers.send(index, Abort(key))

    def _take(self, index: int, answer: Answer) -> Iterator[FinishedRequest]:
        """One entry of a worker's answers; the request is done when both of its workers have ended it."""
        decode = self._routes[answer.key].decode
        if decode is None or index == decode:
            self._client.take(answer)
        if answer.ended is None:
            return
        (self._decoded if index == decode else self._prefilled)[answer.key] = answer
        if answer.key in self._prefilled and (decode is None or answer.key in self._decoded):
            yield self._finish(answer.key)

    def _finish(self, key: RequestKey) -> FinishedRequest:
        route = self._routes.pop(key)
        leader = route.prefill if route.decode is None else route.decode
        prompt, output_ids = self._client.end(key)
        ended, rows = merge_answers(
            self._prefilled.pop(key),
            self._decoded.pop(key, None),
            len(prompt.prompt_ids),
            len(output_ids),
            self._config.faults,
        )
        dp_rank = self._roster.seats[leader].place.dp
        return finished_request(prompt, output_ids, ended, rows, self._layout, dp_rank=dp_rank)
