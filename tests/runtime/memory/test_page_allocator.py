import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeinspect.runtime.memory.page_allocator import PAGE_SIZE, PageAllocator


def test_page_zero_is_never_handed_out():
    allocator = PageAllocator(4 * PAGE_SIZE)
    slots = allocator.allocate(3 * PAGE_SIZE)
    assert slots.min() == PAGE_SIZE
    assert allocator.num_free_slots == 0
    assert not allocator.can_allocate(1)


@given(st.lists(st.integers(1, 40), max_size=30), st.randoms(use_true_random=False))
def test_every_slot_has_one_owner_at_any_time(sizes, rng):
    allocator = PageAllocator(30 * PAGE_SIZE)
    held = []
    for size in sizes:
        if held and rng.random() < 0.4:
            allocator.free(held.pop(rng.randrange(len(held))))
        if allocator.can_allocate(size):
            slots = allocator.allocate(size)
            assert len(slots) >= size
            held.append(slots)
        owned = np.concatenate([np.zeros(0, int), *held])
        assert len(np.unique(owned)) == len(owned)
        allocator.check_integrity(held)


def test_integrity_check_sees_a_lost_and_a_shared_page():
    allocator = PageAllocator(5 * PAGE_SIZE)
    slots = allocator.allocate(PAGE_SIZE)
    with pytest.raises(RuntimeError, match="lost or owned twice"):
        allocator.check_integrity([])
    with pytest.raises(RuntimeError, match="lost or owned twice"):
        allocator.check_integrity([slots, slots])
