"""Gives running requests a table row and KV slots: from the prefix cache what is known, the rest fresh."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moeinspect.runtime.memory.host_tier import KVMover
from moeinspect.runtime.memory.page_allocator import PAGE_SIZE, PageAllocator, slots_in_pages
from moeinspect.runtime.memory.radix_cache import RadixCache
from moeinspect.runtime.scheduler.request import NO_PAGES, NO_SLOTS, Request


class RequestPool:
    """Table rows and KV slots of a worker.

    A request starts with the slots of its prefill and of one step more and grows from step to step.
    Pages are shared through the prefix cache, where there is one (`cache`).
    """

    def __init__(
        self,
        max_running_requests: int,
        allocator: PageAllocator,
        *,
        width: int,
        lookahead: int,
        mover: KVMover,
        cache: RadixCache | None = None,
    ) -> None:
        """`width` positions are written by a step at most; `lookahead` of them past the last output."""
        self.allocator = allocator
        self.mover = mover
        self.cache = cache
        self._width = width
        self._lookahead = lookahead
        self._free_rows = list(range(max_running_requests))
        self._held: dict[int, Request] = {}

    def hold(self, request: Request) -> bool:
        """Gives `request` a table row and the slots of its prefill; False if there is not enough of either.

        On success `slots`, `prefilled_len` and `computed_len` tell what the prefix cache already had.
        """
        num_slots = slots_in_pages(min(request.fill_len + self._width, self._longest(request)))
        if not self._free_rows:
            return False
        known = self._take_prefix(request, num_slots)
        if known is None:
            return False
        request.table_row = self._free_rows.pop(0)
        self._held[request.table_row] = request
        request.slots, request.owned = known.copy(), np.zeros(len(known) // PAGE_SIZE, dtype=bool)
        request.prefilled_len = request.computed_len = len(known)
        self._append(request, num_slots - len(known))
        return True

    def grow(self, request: Request, length: int) -> bool:
        """Makes sure that `request` has slots for `length` positions, or for all it may ever reach."""
        missing = slots_in_pages(min(length, self._longest(request))) - len(request.slots)
        if missing <= 0:
            return True
        if not self._make_room(missing):
            return False
        self._append(request, missing)
        return True

    def length_of_next_step(self, request: Request) -> int:
        """Positions that the next step of `request` may reach, whatever the steps in flight accept."""
        return request.next_position + (request.inflight_samples + 1) * self._width

    @staticmethod
    def page_start(position: int) -> int:
        """First position of the page that holds `position`."""
        return position // PAGE_SIZE * PAGE_SIZE

    def share_prefix(self, request: Request) -> None:
        """Puts the whole pages that `request` has computed into the prefix cache; it goes on reading them."""
        if self.cache is None or request.cache_node is None:
            return
        length = min(request.computed_len, request.num_fed) // PAGE_SIZE * PAGE_SIZE
        node, taken = self.cache.insert(request.token_ids[:length], request.slots[:length])
        request.owned[: len(taken)] &= ~taken
        self.cache.lock(node)
        self.cache.unlock(request.cache_node)
        request.cache_node = node

    def release(self, request: Request) -> None:
        """Frees row and own pages; from here on they may be another request's."""
        if self.cache is not None and request.cache_node is not None:
            self.cache.unlock(request.cache_node)
            request.cache_node = None
        pages = request.slots.reshape(-1, PAGE_SIZE)
        self.allocator.free(pages[request.owned].reshape(-1))
        del self._held[request.table_row]
        self._free_rows.append(request.table_row)
        request.table_row, request.slots, request.owned = -1, NO_SLOTS, NO_PAGES

    def check_integrity(self) -> None:
        """Every page is free, a request's own or the prefix cache's; every row is free or held.

        Raises:
            RuntimeError: something is lost, or has two owners.
        """
        owned = [r.slots.reshape(-1, PAGE_SIZE)[r.owned].reshape(-1) for r in self._held.values()]
        cached = [] if self.cache is None else self.cache.held_slots()
        self.allocator.check_integrity(owned + cached)
        if self.cache is not None:
            self.cache.check_integrity()
        rows = set(self._free_rows)
        if len(rows) != len(self._free_rows) or rows & set(self._held):
            raise RuntimeError("a table row is both free and held")

    def _take_prefix(self, request: Request, num_slots: int) -> NDArray[np.int64] | None:
        """Slots of the longest known prefix, locked, with room made for the rest of `num_slots`.

        None if there is not enough room for it.
        """
        if self.cache is None:
            return NO_SLOTS if self._make_room(num_slots) else None
        matchable = request.fill_ids[: _matchable(request)]
        match = self.cache.match(matchable)
        self.cache.lock(match.node)
        if not self._make_room(num_slots - len(match.slots)):
            self.cache.unlock(match.node)
            return None
        if match.host_nodes:
            # Making room may have pushed parts of the match out of the host tier: what is left counts.
            match = self.cache.match(matchable)
        request.cache_node = self.cache.load(match)
        return request.cache_node.prefix_slots()

    def _longest(self, request: Request) -> int:
        """Positions of `request` from its first prompt token to the last draft token."""
        if not request.samples:
            return request.prompt_len
        return request.prompt_len + request.prompt.max_new_tokens + self._lookahead

    def _make_room(self, num_slots: int) -> bool:
        """Evicts what it takes to allocate `num_slots`; False, and nothing evicted, if that is not enough."""
        free = self.allocator.num_free_slots
        evictable = 0 if self.cache is None else self.cache.num_evictable_slots
        if num_slots > free + evictable:
            return False
        if num_slots > free and self.cache is not None:
            self.cache.evict(num_slots - free)
        return True

    def _append(self, request: Request, num_slots: int) -> None:
        fresh: NDArray[np.int64] = self.allocator.allocate(num_slots)
        request.slots = np.concatenate([request.slots, fresh])
        request.owned = np.concatenate([request.owned, np.ones(len(fresh) // PAGE_SIZE, dtype=bool)])


def _matchable(request: Request) -> int:
    """Tokens that may come from the prefix cache: whole pages, and at least one token is left to compute."""
    return (request.fill_len - 1) // PAGE_SIZE * PAGE_SIZE
