"""Which requests hold KV slots: admission, growth, retraction and release."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from moeinspect.runtime.capture.collector import RowCollector, join_rows
from moeinspect.runtime.device.stream import Device
from moeinspect.runtime.memory.request_pool import RequestPool
from moeinspect.runtime.records import RequestKey
from moeinspect.runtime.scheduler.request import Request
from moeinspect.runtime.worker.device_state import DeviceState


class Residents:
    """The waiting queue and the active requests, oldest first.

    When KV slots run out, the youngest request is retracted: what it computed goes to the prefix cache (and
    with it, when evicted, to the host tier), its slots are freed, and it waits in front of the queue to be
    prefilled again. The oldest request is never retracted, so that a run always gets on.
    """

    def __init__(
        self, pool: RequestPool, collector: RowCollector, device: Device, state: DeviceState
    ) -> None:
        self.pool = pool
        self.waiting: deque[Request] = deque()
        self.active: list[Request] = []
        self._collector = collector
        self._device = device
        self._state = state
        self._holds_back = False

    def admit(self, prefill_ahead: int | None = None) -> list[Request]:
        """Moves requests from the queue to the active ones while there is room; returns them.

        With `prefill_ahead` none is admitted while this many tokens wait for their prefill: its prefix is
        looked up as late as that, so that it finds what requests just before it have computed. Mirrors the
        token budget of `PrefillAdder` in SGLang.
        """
        if not self.active:
            self._holds_back = False
        ahead = sum(request.fill_len - request.prefilled_len for request in self.active)
        admitted = []
        while self.waiting and not self._holds_back and (prefill_ahead is None or ahead < prefill_ahead):
            if not self._give_slots(self.waiting[0]):
                break
            request = self.waiting.popleft()
            self.active.append(request)
            admitted.append(request)
            ahead += request.fill_len - request.prefilled_len
        return admitted

    def reserve(self, requests: Sequence[Request], step: int) -> tuple[Request, ...]:
        """Those of `requests` whose next step has its slots; the others wait for a retraction."""
        ready = []
        for request in requests:
            if _keeps_slots(request) and self._grow(request, step):
                ready.append(request)
        return tuple(request for request in ready if _keeps_slots(request))

    def retract_if_drained(self, request: Request) -> None:
        """Takes the slots from a request that was chosen for it, once no step in flight uses them."""
        if request.is_retracting and not request.is_finished and request.inflight == 0:
            self.pool.share_prefix(request)
            self.take_slots(request)

    def take_slots(self, request: Request) -> None:
        """Frees the slots of an active request and puts it in front of the queue.

        Its rows are set aside: they are asked for if it ends, or if the weights change, before it has
        computed them again.
        """
        rows, before = self._collector.collect(request, 0, request.computed_len), request.rows_set_aside
        if before is not None and len(before) > len(rows):
            rows = join_rows([rows, before.between(len(rows), len(before))])
        request.rows_set_aside = rows
        self.pool.release(request)
        self.active.remove(request)
        request.retracted()
        self.waiting.appendleft(request)
        self._holds_back = True

    def retract_all(self) -> bool:
        """Takes the slots of all requests and keeps their rows; False if a step is still in flight."""
        if any(request.inflight for request in self.active):
            return False
        for request in reversed(self.active.copy()):  # the oldest ends up in front of the queue
            self.take_slots(request)
        for request in self.waiting:
            request.keep_rows()
        return True

    def forget(self, request: Request) -> None:
        """A waiting request ended."""
        self.waiting.remove(request)

    def release(self, request: Request) -> None:
        """An ended request gives its slots back; what it computed stays in the prefix cache."""
        self.pool.share_prefix(request)
        self.pool.release(request)
        self.active.remove(request)
        self._holds_back = False

    def find(self, key: RequestKey) -> Request | None:
        """The request of this key, if it waits or is active."""
        return next((r for r in (*self.waiting, *self.active) if r.key == key), None)

    def _give_slots(self, request: Request) -> bool:
        if not self.pool.hold(request):
            return False
        cached = request.computed_len
        fresh_admission = request.num_retractions == 0
        request.cached_tokens = cached if fresh_admission else min(cached, request.cached_tokens)
        self._collector.note_allocated(request.slots[cached:])
        row, slots, seed, tokens = request.table_row, request.slots, request.seed, request.fill_ids
        # On the device the row may still be read by a step in flight: the change waits its turn.
        self._device.compute.submit(
            lambda: self._state.assign(row, slots, seed, tokens), kind="assign", step=0
        )
        return True

    def _grow(self, request: Request, step: int) -> bool:
        start = len(request.slots)
        while not self.pool.grow(request, self.pool.length_of_next_step(request)):
            victim = next((r for r in reversed(self.active) if not r.is_retracting), None)
            if victim is None or victim is request or victim is self.active[0]:
                return False
            victim.is_retracting = True
            self.retract_if_drained(victim)
            if victim.inflight:
                return False
        if len(request.slots) > start:
            fresh, row = request.slots[start:], request.table_row
            self._collector.note_allocated(fresh)
            self._device.compute.submit(
                lambda: self._state.extend_slots(row, start, fresh), kind="extend-slots", step=step
            )
        return True


def _keeps_slots(request: Request) -> bool:
    """Whether it is neither retracted nor about to be."""
    return request.table_row >= 0 and not request.is_retracting
