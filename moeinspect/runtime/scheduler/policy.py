"""The choices that leave results unchanged; tests replace them by random ones."""

from __future__ import annotations

from collections.abc import Sequence

from moeinspect.runtime.scheduler.request import Request


class SchedulePolicy:
    """Prefill first, chunks as large as the budget, every running request in each decode step."""

    def __init__(self, chunked_prefill_size: int) -> None:
        self._chunked_prefill_size = chunked_prefill_size

    def prefill_next(self) -> bool:
        """Whether prefill goes before decode when both could run."""
        return True

    def prefill_ahead(self) -> int:
        """Prompt tokens that wait in admitted requests at most; the last one admitted may go beyond."""
        return self._chunked_prefill_size

    def chunk_budget(self) -> int:
        """Prompt tokens that the next prefill step may hold, at least 1."""
        return self._chunked_prefill_size

    def select_decode(self, requests: Sequence[Request]) -> Sequence[Request]:
        """Which of the requests that can decode do so in the next step; not empty."""
        return requests
