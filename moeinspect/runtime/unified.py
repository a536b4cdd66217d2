"""Prefill and decode in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moeinspect.runtime.answers import AnswerWriter, read_answers
from moeinspect.runtime.client import Client
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.device.stream import Jitter
from moeinspect.runtime.faults import ActiveFaults
from moeinspect.runtime.plan import Plan
from moeinspect.runtime.records import Event, FinishedRequest
from moeinspect.runtime.results import RowLayout, finished_request
from moeinspect.runtime.scheduler.outputs import StepOutputs
from moeinspect.runtime.scheduler.policy import SchedulePolicy
from moeinspect.runtime.scheduler.request import Request
from moeinspect.runtime.scheduler.scheduler import Scheduler
from moeinspect.runtime.worker.worker import Worker


class UnifiedServer:
    """One worker that does everything; the host side runs in the calling thread."""

    def __init__(
        self,
        config: RunConfig,
        plan: Plan,
        layout: RowLayout,
        *,
        policy: SchedulePolicy | None = None,
        jitter: Jitter | None = None,
    ) -> None:
        self._overlap = config.overlap
        self._layout = layout
        self._writer = AnswerWriter(stream=config.stream, faults=ActiveFaults.of(config.faults))
        self._client = Client(())
        self._ended: list[FinishedRequest] = []
        self._worker = Worker(config, plan, 0, jitter=jitter)
        self._scheduler = Scheduler(
            self._worker.runner,
            self._worker.pool,
            self._worker.collector,
            self._worker.device,
            policy or SchedulePolicy(config.chunked_prefill_size),
            self._on_outputs,
            faults=self._worker.faults,
            weight_updates=self._worker.weight_updates,
        )

    def run(self, requests: Sequence[Request]) -> Iterator[FinishedRequest]:
        """Runs the requests to their ends; yields each as it ends.

        Raises:
            EngineError: a forward failed.
        """
        scheduler = self._scheduler
        self._client = Client(request.prompt for request in requests)
        for request in requests:
            scheduler.add(request)
        loop = scheduler.overlap_loop if self._overlap else scheduler.normal_loop
        for _ in loop(self._receive):
            yield from self._take_ended()
        yield from self._take_ended()
        scheduler.pool.check_integrity()

    def drain_events(self) -> list[Event]:
        """Events since the last call."""
        return self._worker.log.drain()

    def close(self) -> None:
        """Ends the device's threads."""
        self._worker.close()

    def _receive(self, _: bool) -> bool:
        for key in self._client.take_aborts():
            self._scheduler.abort(key)
        return self._scheduler.has_requests

    def _take_ended(self) -> list[FinishedRequest]:
        ended, self._ended = self._ended, []
        return ended

    def _on_outputs(self, outputs: StepOutputs) -> None:
        for answer in read_answers(self._writer.write(outputs)):
            self._client.take(answer)
            if answer.ended is not None:
                prompt, output_ids = self._client.end(answer.key)
                self._ended.append(
                    finished_request(prompt, output_ids, answer.ended, answer.rows, self._layout)
                )
