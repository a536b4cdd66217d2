"""The two halves of the scheduler when prefill and decode run in different processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeinspect.runtime.faults import MERGE_MISALIGNED, SKIP_FINALIZE_PREFILL
from moeinspect.runtime.records import RequestKey
from moeinspect.runtime.scheduler.batch import StepResult
from moeinspect.runtime.scheduler.decode_residents import DecodeResidents
from moeinspect.runtime.scheduler.request import Request
from moeinspect.runtime.scheduler.scheduler import Scheduler


class PrefillScheduler(Scheduler):
    """Runs prompts only. Requests arrive with one token to sample; their slots are held until the KV left.

    One that samples nothing ends here.
    """

    on_prefilled: Callable[[Request], None]

    def _process_prefill(self, result: StepResult) -> None:
        """Mirrors `process_batch_result_disagg_prefill`, a handler of its own upstream.

        That is why the call that the other handlers had was missing here (SGLang PR 23885).
        """
        if SKIP_FINALIZE_PREFILL not in self.faults:
            self._store_rows(result)
        self._note_chunks(result.batch)
        for i, (request, tokens) in enumerate(
            zip(result.batch.sampling_requests, result.outputs(), strict=True)
        ):
            request.last_hidden = None if result.hidden is None else result.hidden[i]
            if self._append(request, tokens):
                self.pool.share_prefix(request)
                self.on_prefilled(request)
        for chunk in result.batch.chunks:
            if not chunk.samples or chunk.request.finish_reason == "abort":
                self._end_prefill(chunk)

    def abort(self, key: RequestKey) -> None:
        """Ends a request whose prompt is not computed yet; later the KV is sent all the same."""
        request = self.residents.find(key)
        if request is not None and not request.output_ids:
            super().abort(key)

    def kv_sent(self, request: Request) -> None:
        """The request's KV has arrived at the decode worker: its rows are collected and its slots freed."""
        self._settle(request, [])
        self._send_outputs()


class DecodeScheduler(Scheduler):
    """Runs decode steps only. Slots are allocated before the prompt's KV is sent into them.

    It cannot compute a prompt again, so KV of a retracted request waits in host memory.
    """

    on_preallocated: Callable[[Request], None]
    collects_prompt_rows = False
    """Whether answers begin at row 0 (fault `no-merge`) and not at the first row computed here."""

    residents: DecodeResidents

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(*args, **kwargs)
        self._preallocated: dict[RequestKey, Request] = {}

    @property
    def has_requests(self) -> bool:
        """Whether a request waits for slots or KV, runs, or still has a step in flight."""
        return bool(self._preallocated) or super().has_requests

    def abort(self, key: RequestKey) -> None:
        """Ends a request now; slots that await KV are freed once it has come, or will not come."""
        preallocated = self._preallocated.get(key)
        if preallocated is None:
            super().abort(key)
        elif not preallocated.is_finished:
            preallocated.finish_reason = "abort"

    def kv_arrived(
        self, key: RequestKey, first_token: int, hidden: NDArray[np.float32] | None = None
    ) -> None:
        """The prompt's KV lies in the slots that were allocated for it; decoding can begin.

        `hidden` [width * H] are the target's hidden states of the last prompt token, for a draft head.
        """
        request = self._preallocated.pop(key)
        self.residents.active.append(request)
        if not request.is_finished:
            request.note_computed(request.prompt_len, self.weight_version)
            kept = self._append(request, [first_token])
            self.residents.begin_decode(request, self._step, hidden)
            self._settle(request, kept)
        else:
            self._settle(request, [])
        self._send_outputs()

    def kv_aborted(self, key: RequestKey) -> None:
        """No KV will come for this request, which was aborted before its prompt was computed."""
        request = self._preallocated.pop(key)
        request.finish_reason = "abort"
        self.residents.active.append(request)
        self._settle(request, [])
        self._send_outputs()

    def _make_residents(self) -> DecodeResidents:
        return DecodeResidents(self.pool, self.collector, self._device, self.runner.state, faults=self.faults)

    def _admit(self) -> None:
        for request in self.residents.admit():
            if request.output_ids:
                continue  # it was retracted, and its KV has just been put back
            self.residents.active.remove(request)
            self._preallocated[request.key] = request
            self.on_preallocated(request)

    def _first_collected_position(self, request: Request) -> int:
        if self.collects_prompt_rows:
            return 0
        if MERGE_MISALIGNED in self.faults:
            return self.pool.page_start(request.prompt_len)
        return request.prompt_len
