"""Hands out KV slots in whole pages."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PAGE_SIZE = 8
"""KV slots of one page."""


def slots_in_pages(num_slots: int) -> int:
    """`num_slots` rounded up to whole pages."""
    return -(-num_slots // PAGE_SIZE) * PAGE_SIZE


class PageAllocator:
    """Free pages of a KV cache; page 0 belongs to nobody, since slot 0 is the dummy slot.

    Pages are handed out lowest first and come back to the end of the queue, so that a freed page is
    reused as late as possible and a run always makes the same choices.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_pages = num_slots // PAGE_SIZE
        self._free = list(range(1, self.num_pages))

    @property
    def num_free_slots(self) -> int:
        """KV slots that can be allocated now."""
        return len(self._free) * PAGE_SIZE

    def can_allocate(self, num_slots: int) -> bool:
        """Whether `allocate(num_slots)` would succeed."""
        return slots_in_pages(num_slots) <= self.num_free_slots

    def allocate(self, num_slots: int) -> NDArray[np.int64]:
        """Slots of whole pages, at least `num_slots` of them, in position order."""
        count = slots_in_pages(num_slots) // PAGE_SIZE
        if count > len(self._free):
            raise RuntimeError(f"{num_slots} KV slots asked for, {self.num_free_slots} free")
        pages, self._free = self._free[:count], self._free[count:]
        return (np.asarray(pages, dtype=np.int64)[:, None] * PAGE_SIZE + np.arange(PAGE_SIZE)).reshape(-1)

    def free(self, slots: NDArray[np.int64]) -> None:
        """Takes back the slots that `allocate` returned, all of them."""
        self._free.extend(int(page) for page in slots[::PAGE_SIZE] // PAGE_SIZE)

    def check_integrity(self, owned: list[NDArray[np.int64]]) -> None:
        """Every page but page 0 is either free or owned by exactly one request.

        Raises:
            RuntimeError: a page is lost, or has two owners.
        """
        pages = self._free + [int(p) for slots in owned for p in np.unique(slots // PAGE_SIZE)]
        if sorted(pages) != list(range(1, self.num_pages)):
            raise RuntimeError(f"KV pages lost or owned twice: {len(pages)} for {self.num_pages - 1}")
