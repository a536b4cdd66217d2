"""The prefix cache against a plain dictionary of prefixes, under random traffic."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinspect.runtime.memory.page_allocator import PAGE_SIZE, PageAllocator
from moeinspect.runtime.memory.radix_cache import RadixCache


class PlainHost:
    """A host tier that remembers which tokens' KV it holds, by slot."""

    def __init__(self, num_slots, content):
        self.num_slots = num_slots
        self.content = content
        self.held = {}
        self._allocator = PageAllocator(PAGE_SIZE + num_slots)

    def can_allocate(self, num_slots):
        return self._allocator.can_allocate(num_slots)

    def back_up(self, slots):
        host_slots = self._allocator.allocate(len(slots))
        for host_slot, slot in zip(host_slots, slots, strict=True):
            self.held[int(host_slot)] = self.content[int(slot)]
        return host_slots

    def load(self, host_slots, slots):
        for host_slot, slot in zip(host_slots, slots, strict=True):
            self.content[int(slot)] = self.held[int(host_slot)]

    def free(self, host_slots):
        for host_slot in host_slots:
            del self.held[int(host_slot)]
        self._allocator.free(host_slots)

    def check_integrity(self, held):
        self._allocator.check_integrity(held)


def tokens_of(rng, pages):
    """Whole pages of tokens, of which few kinds exist, so that prefixes are shared and split."""
    return tuple(t for _ in range(pages) for t in (rng.randrange(2),) * PAGE_SIZE)


class Cached:
    """A cache in use: `content[slot]` is the prefix that the slot's KV belongs to."""

    def __init__(self, num_pages, host_pages):
        self.content = {}
        self.allocator = PageAllocator(PAGE_SIZE * (1 + num_pages))
        self.host = PlainHost(host_pages * PAGE_SIZE, self.content) if host_pages else None
        self.cache = RadixCache(self.allocator, self.host)
        self.running = []

    def run(self, tokens):
        """What a request does: match, lock, load, compute the rest, share it."""
        match = self.cache.match(tokens)
        self.cache.lock(match.node)
        need = len(tokens) - len(match.slots)
        if need > self.allocator.num_free_slots + self.cache.num_evictable_slots:
            self.cache.unlock(match.node)
            return
        if need > self.allocator.num_free_slots:
            self.cache.evict(need - self.allocator.num_free_slots)
        node = self.cache.load(self.cache.match(tokens))
        known = self.cache.match(tokens).slots
        for position, slot in enumerate(known):
            assert self.content[int(slot)] == tokens[: position + 1]
        fresh = self.allocator.allocate(len(tokens) - len(known))
        slots = np.concatenate([known, fresh])
        for position in range(len(known), len(tokens)):
            self.content[int(slots[position])] = tokens[: position + 1]
        last, taken = self.cache.insert(tokens, slots)
        own = slots.reshape(-1, PAGE_SIZE)[len(known) // PAGE_SIZE :][~taken[len(known) // PAGE_SIZE :]]
        self.cache.lock(last)
        self.cache.unlock(node)
        self.running.append((last, own.reshape(-1)))

    def end(self, which):
        node, own = self.running.pop(which)
        self.cache.unlock(node)
        self.allocator.free(own)

    def check(self):
        self.cache.check_integrity()
        self.allocator.check_integrity([own for _, own in self.running] + self.cache.held_slots())


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(4, 12), st.sampled_from([0, 2, 6]))
def test_a_prefix_is_found_with_its_own_kv_through_splits_eviction_and_the_host_tier(rng, pages, host_pages):
    cached = Cached(pages, host_pages)
    for _ in range(40):
        if cached.running and rng.random() < 0.4:
            cached.end(rng.randrange(len(cached.running)))
        else:
            cached.run(tokens_of(rng, rng.randint(1, 5)))
        cached.check()
    while cached.running:
        cached.end(0)
    cached.check()
    cached.cache.reset()
    cached.check()
    assert cached.allocator.num_free_slots == pages * PAGE_SIZE


def test_the_longest_prefix_in_whole_pages_is_found():
    cached = Cached(8, 0)
    tokens = tuple(range(3 * PAGE_SIZE))
    cached.run(tokens)
    other = (*tokens[: 2 * PAGE_SIZE + 3], *[99] * 20)
    match = cached.cache.match(other)
    assert match.slots.tolist() == cached.cache.match(tokens).slots[: 2 * PAGE_SIZE].tolist()
    assert cached.cache.match((7, *tokens)).slots.size == 0


def test_what_a_request_reads_is_not_evicted():
    cached = Cached(4, 0)
    tokens = tuple(range(2 * PAGE_SIZE))
    cached.run(tokens)
    cached.cache.evict(4 * PAGE_SIZE)
    assert len(cached.cache.match(tokens).slots) == 2 * PAGE_SIZE
    cached.end(0)
    cached.cache.evict(PAGE_SIZE)
    assert len(cached.cache.match(tokens).slots) == 0


def test_the_least_recently_used_prefix_goes_first():
    cached = Cached(4, 0)
    first, second = (1,) * PAGE_SIZE, (2,) * PAGE_SIZE
    for tokens in (first, second):
        cached.run(tokens)
        cached.end(0)
    cached.cache.match(first)
    cached.cache.evict(PAGE_SIZE)
    assert len(cached.cache.match(first).slots) == PAGE_SIZE
    assert len(cached.cache.match(second).slots) == 0


def test_an_evicted_prefix_comes_back_from_the_host_in_other_slots():
    cached = Cached(4, 3)
    tokens = tuple(range(2 * PAGE_SIZE))
    cached.run(tokens)
    cached.end(0)
    before = cached.cache.match(tokens).slots
    cached.cache.evict(2 * PAGE_SIZE)
    assert len(cached.cache.match(tokens).host_nodes) == 1
    cached.run(tokens)
    after = cached.cache.match(tokens).slots
    assert after.tolist() != before.tolist() and len(after) == 2 * PAGE_SIZE
    cached.check()


def test_a_reset_while_a_request_reads_is_refused():
    cached = Cached(3, 0)
    cached.run((1,) * PAGE_SIZE)
    with pytest.raises(RuntimeError, match="reset while a request read"):
        cached.cache.reset()
