"""Gives each running request a table row and the KV slots of all positions it may reach."""

from __future__ import annotations

from moeinspect.runtime.memory.page_allocator import PageAllocator
from moeinspect.runtime.scheduler.request import NO_SLOTS, Request


class RequestPool:
    """Table rows and KV slots of a worker, taken and given back together."""

    def __init__(self, max_running_requests: int, num_slots: int, lookahead: int) -> None:
        """`lookahead` is the number of positions past the last output that a step may write."""
        self.allocator = PageAllocator(num_slots)
        self._lookahead = lookahead
        self._free_rows = list(range(max_running_requests))
        self._held: dict[int, Request] = {}

    def slots_needed(self, request: Request) -> int:
        """KV slots of `request`, from its first prompt token to the last draft token."""
        return request.prompt_len + request.prompt.max_new_tokens + self._lookahead

    def can_hold(self, request: Request) -> bool:
        """Whether `hold(request)` would succeed."""
        return bool(self._free_rows) and self.allocator.can_allocate(self.slots_needed(request))

    def hold(self, request: Request) -> None:
        """Allocates the request's row and slots; `release` gives them back."""
        request.table_row = self._free_rows.pop(0)
        request.slots = self.allocator.allocate(self.slots_needed(request))
        self._held[request.table_row] = request

    def release(self, request: Request) -> None:
        """Frees row and slots; from here on they may be another request's."""
        del self._held[request.table_row]
        self._free_rows.append(request.table_row)
        self.allocator.free(request.slots)
        request.table_row, request.slots = -1, NO_SLOTS

    def check_integrity(self) -> None:
        """Every page and row is free or held once; see `PageAllocator.check_integrity`."""
        self.allocator.check_integrity([request.slots for request in self._held.values()])
        rows = set(self._free_rows)
        if len(rows) != len(self._free_rows) or rows & set(self._held):
            raise RuntimeError("a table row is both free and held")
