"""Which requests hold KV slots on a decode worker: what is retracted keeps its KV in host memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moeinspect.runtime.capture.collector import RowCollector
from moeinspect.runtime.device.stream import Device
from moeinspect.runtime.faults import STALE_SLOT, ActiveFaults
from moeinspect.runtime.memory.host_tier import KVBackup
from moeinspect.runtime.memory.request_pool import RequestPool
from moeinspect.runtime.records import RequestKey
from moeinspect.runtime.scheduler.request import Request
from moeinspect.runtime.scheduler.residents import Residents
from moeinspect.runtime.worker.device_state import DeviceState


class DecodeResidents(Residents):
    """Backs KV and rows of a retracted request up and restores them into other slots.

    Mirrors `offload_kv_cache` and `load_kv_cache` of SGLang's disaggregated decode. Fault `stale-slot`
    restores the KV alone.
    """

    def __init__(
        self,
        pool: RequestPool,
        collector: RowCollector,
        device: Device,
        state: DeviceState,
        *,
        faults: ActiveFaults,
    ) -> None:
        super().__init__(pool, collector, device, state)
        self._backups: dict[RequestKey, KVBackup] = {}
        self._moves_rows = STALE_SLOT not in faults

    def begin_decode(self, request: Request, step: int, hidden: NDArray[np.float32] | None = None) -> None:
        """Tells the device state where the request stands; its KV is in its slots.

        `hidden` [width * H] are the target's hidden states of the last prompt token, for a draft head.
        """
        request.prefilled_len = request.fill_len
        row, next_position, last = request.table_row, request.next_position, request.output_ids[-1]
        sampled = request.prompt.output_start + len(request.output_ids)
        self._device.compute.submit(
            lambda: self._state.begin_decode(row, next_position, last, sampled, hidden),
            kind="begin",
            step=step,
        )

    def take_slots(self, request: Request) -> None:
        """Copies the KV of everything fed so far to the host before the slots are freed."""
        slots = request.slots[: request.next_position]
        self._backups[request.key] = KVBackup(self.pool.mover, self._collector, slots)
        super().take_slots(request)

    def forget(self, request: Request) -> None:
        """A waiting request ended: its KV is not needed any more."""
        super().forget(request)
        backup = self._backups.pop(request.key, None)
        if backup is not None:
            backup.drop()

    def _give_slots(self, request: Request) -> bool:
        if not super()._give_slots(request):
            return False
        backup = self._backups.pop(request.key, None)
        if backup is not None:
            backup.restore(request.slots, moves_rows=self._moves_rows)
            request.computed_len = request.next_position
            self.begin_decode(request, 0)
        return True
