"""The rows that an ended request is answered with: how many there are, and where each comes from."""

from __future__ import annotations

from moeinspect.runtime.capture.collector import CollectedRows, RowCollector, join_rows
from moeinspect.runtime.faults import PREFILL_ONLY_SHORT, RETRACT_REROUTE, SURPLUS_AFTER_STOP, ActiveFaults
from moeinspect.runtime.scheduler.request import Request


class RowAnswers:
    """Collects an ended request's rows from the host buffer and from what was kept for it."""

    def __init__(self, collector: RowCollector, faults: ActiveFaults) -> None:
        self._collector = collector
        self._faults = faults

    def rows_of(self, request: Request, start: int) -> CollectedRows | None:
        """The rows of the tokens that were fed, from position `start` on; None if they were not asked for."""
        if not request.prompt.return_routed_experts:
            return None
        kept = [] if RETRACT_REROUTE in self._faults else request.kept_rows
        position = max(start, sum(len(part) for part in kept))
        end = max(position, self._num_rows(request))
        parts = [*kept, self._collector.collect(request, position, end)]
        if request.finish_reason == "abort" and request.rows_set_aside is not None:
            # It may not have computed again what it had computed when its slots were taken.
            parts.append(request.rows_set_aside.between(end, max(end, request.num_fed)))
        rows = join_rows(parts) if len(parts) > 1 else parts[0]
        rows.weight_version = request.versions_of_rows(rows.start, rows.start + len(rows))
        return rows

    def _num_rows(self, request: Request) -> int:
        if request.finish_reason == "abort":
            return min(request.num_fed, request.computed_len)
        if PREFILL_ONLY_SHORT in self._faults:
            return request.next_position  # "tokens - 1", although no token was sampled
        if SURPLUS_AFTER_STOP in self._faults and request.finish_reason == "stop":
            return request.prompt_len + request.sampled_len - 1  # before the stop was applied
        return request.num_fed
