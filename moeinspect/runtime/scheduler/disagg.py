"""The two halves of the scheduler when prefill and decode run in different processes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from moeinspect.runtime.faults import SKIP_FINALIZE_PREFILL, ActiveFaults
from moeinspect.runtime.records import RequestKey
from moeinspect.runtime.scheduler.batch import StepResult
from moeinspect.runtime.scheduler.request import Request
from moeinspect.runtime.scheduler.scheduler import Scheduler


class PrefillScheduler(Scheduler):
    """Runs prompts only. Requests arrive with one token to sample; their slots are held until the KV left."""

    faults: ActiveFaults = ActiveFaults()
    on_prefilled: Callable[[Request], None]

    def _process_prefill(self, result: StepResult) -> None:
        """Mirrors `process_batch_result_disagg_prefill`, a handler of its own upstream.

        That is why the call that the other handlers had was missing here (SGLang PR 23885).
        """
        if SKIP_FINALIZE_PREFILL not in self.faults:
            result.finalize()
        self._note_chunks(result.batch)
        for i, (request, tokens) in enumerate(
            zip(result.batch.sampling_requests, result.outputs(), strict=True)
        ):
            request.last_hidden = None if result.hidden is None else result.hidden[i]
            request.append_outputs(tokens)
            self.on_prefilled(request)

    def kv_sent(self, request: Request) -> None:
        """The request's KV has arrived at the decode worker: its rows are collected and its slots freed."""
        self._settle(request, [])
        self._send_outputs()


class DecodeScheduler(Scheduler):
    """Runs decode steps only. Slots are allocated before the prompt's KV is sent into them."""

    on_preallocated: Callable[[Request], None]
    collects_prompt_rows = False
    """Whether answers begin at row 0 (fault `no-merge`) and not at the first row computed here."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._preallocated: dict[RequestKey, Request] = {}

    @property
    def has_requests(self) -> bool:
        """Whether a request waits for slots or KV, runs, or still has a step in flight."""
        return bool(self._preallocated) or super().has_requests

    def _admit(self) -> None:
        while self.waiting and self.pool.can_hold(self.waiting[0]):
            request = self.waiting.popleft()
            self._hold(request)
            self._preallocated[request.prompt.key] = request
            self.on_preallocated(request)

    def kv_arrived(
        self, key: RequestKey, first_token: int, hidden: NDArray[np.float32] | None = None
    ) -> None:
        """The prompt's KV lies in the slots that were allocated for it; decoding can begin.

        `hidden` [width * H] are the target's hidden states of the last prompt token, for a draft head.
        """
        request = self._preallocated.pop(key)
        request.prefilled_len = request.prompt_len
        row, prompt_len = request.table_row, request.prompt_len
        self._device.compute.submit(
            lambda: self.runner.state.begin_decode(row, prompt_len, first_token, hidden),
            kind="begin",
            step=self._step,
        )
        self.active.append(request)
        request.append_outputs([first_token])
        self._settle(request, [first_token])
        self._send_outputs()

    def _first_collected_position(self, request: Request) -> int:
        return 0 if self.collects_prompt_rows else request.prompt_len
