"""The prefix cache: a radix tree over token ids whose nodes own pages of KV slots.

Mirrors `sglang/srt/mem_cache/{radix_cache,hiradix_cache}.py` with pages of `PAGE_SIZE` tokens. A node's KV
lies on the device, in the host tier, or in both. Nodes whose KV is on the device form the top of the tree:
what is evicted first are nodes without a child on the device.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from moeinspect.runtime.memory.host_tier import HostTier
from moeinspect.runtime.memory.page_allocator import PAGE_SIZE, PageAllocator

Tokens = tuple[int, ...]


@dataclass(slots=True, eq=False)
class RadixNode:
    """A stretch of whole pages; `slots` and `host_slots` [len(key)] say where its KV lies, None: not there.

    `locks` counts the running requests that read this node or one below it.
    """

    key: Tokens
    parent: RadixNode | None = None
    children: dict[Tokens, RadixNode] = field(default_factory=dict)
    slots: NDArray[np.int64] | None = None
    host_slots: NDArray[np.int64] | None = None
    locks: int = 0
    last_used: int = 0

    @property
    def on_device(self) -> bool:
        """Whether its KV lies in the KV cache."""
        return self.slots is not None

    def path(self) -> Iterator[RadixNode]:
        """This node and its ancestors, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent

    def prefix_slots(self) -> NDArray[np.int64]:
        """KV slots of the prefix that ends with this node, which is on the device."""
        slots = [node.slots for node in self.path() if node.slots is not None]
        return np.concatenate(slots[::-1]) if slots else np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The longest known prefix: `slots` [n] on the device, up to `node`; below it what only the host has."""

    node: RadixNode
    slots: NDArray[np.int64]
    host_nodes: tuple[RadixNode, ...] = ()


class RadixCache:
    """Prefixes of earlier requests by their tokens; gives pages back to the allocator when it evicts."""

    def __init__(self, allocator: PageAllocator, host: HostTier | None = None) -> None:
        self._allocator = allocator
        self._host = host
        self._root = RadixNode(())
        self._clock = 0
        self.num_evictable_slots = 0

    def match(self, tokens: Sequence[int]) -> PrefixMatch:
        """The longest prefix of `tokens`, in whole pages."""
        path = self._walk(tuple(tokens))
        num_device = sum(node.on_device for node in path)
        last = path[num_device - 1] if num_device else self._root
        return PrefixMatch(last, last.prefix_slots(), tuple(path[num_device:]))

    def lock(self, node: RadixNode) -> None:
        """Keeps `node` and its ancestors from being evicted, until `unlock`."""
        for one in node.path():
            if one.locks == 0:
                self.num_evictable_slots -= len(one.key)
            one.locks += 1

    def unlock(self, node: RadixNode) -> None:
        """Takes one lock back."""
        for one in node.path():
            one.locks -= 1
            if one.locks == 0:
                self.num_evictable_slots += len(one.key)

    def insert(self, tokens: Sequence[int], slots: NDArray[np.int64]) -> tuple[RadixNode, NDArray[np.bool_]]:
        """Adds the KV of `tokens` [n], whole pages, which lies in `slots` [n].

        Returns the node that ends there, and which pages [n / PAGE_SIZE] the cache has taken over; it has
        KV of its own for the others.
        """
        taken = np.zeros(len(slots) // PAGE_SIZE, dtype=bool)
        node, start = self._root, 0
        for one in self._walk(tuple(tokens)):
            end = start + len(one.key)
            if not one.on_device:
                self._put(one, slots[start:end])
                taken[start // PAGE_SIZE : end // PAGE_SIZE] = True
            node, start = one, end
        if start < len(tokens):
            leaf = RadixNode(tuple(tokens[start:]), node, last_used=self._clock)
            node.children[leaf.key[:PAGE_SIZE]] = leaf
            self._put(leaf, slots[start:])
            taken[start // PAGE_SIZE :] = True
            node = leaf
        return node, taken

    def load(self, match: PrefixMatch) -> RadixNode:
        """Moves what only the host has of a locked match back to the device; the caller has made room.

        Returns the node that the match now ends with; the lock moves there.
        """
        node = match.node
        for one in match.host_nodes:
            if self._host is None or one.host_slots is None:
                raise RuntimeError("a node below the device's part of the tree has no KV in the host tier")
            slots = self._allocator.allocate(len(one.key))
            self._put(one, slots)
            self._host.load(one.host_slots, slots)
            node = one
        self.lock(node)
        self.unlock(match.node)
        return node

    def evict(self, num_slots: int) -> None:
        """Frees at least `num_slots` KV slots, least recently used first, or all that no request reads."""
        leaves = [(node.last_used, id(node), node) for node in self._nodes() if self._is_evictable_leaf(node)]
        heapq.heapify(leaves)
        while num_slots > 0 and leaves:
            _, _, node = heapq.heappop(leaves)
            num_slots -= len(node.key)
            self._drop_from_device(node)
            parent = node.parent
            if parent is not None and self._is_evictable_leaf(parent):
                heapq.heappush(leaves, (parent.last_used, id(parent), parent))

    def reset(self) -> None:
        """Forgets everything; no request may hold a lock."""
        for node in list(self._nodes()):
            if node.locks:
                raise RuntimeError("the prefix cache was reset while a request read from it")
            if node.slots is not None:
                self._allocator.free(node.slots)
            self._free_host(node)
        self._root.children.clear()
        self.num_evictable_slots = 0

    def held_slots(self) -> list[NDArray[np.int64]]:
        """KV slots of each node on the device."""
        return [node.slots for node in self._nodes() if node.slots is not None]

    def check_integrity(self) -> None:
        """Counters and shape of the tree are right, and host pages have one owner each.

        Raises:
            RuntimeError: they are not.
        """
        evictable = 0
        for node in self._nodes():
            if node.on_device and not node.locks:
                evictable += len(node.key)
            parent = node.parent
            if node.on_device and parent is not None and parent is not self._root and not parent.on_device:
                raise RuntimeError("a cached prefix has a gap")
            if not node.on_device and (node.host_slots is None or node.locks):
                raise RuntimeError("a cached node has no KV, or is read without being on the device")
        if evictable != self.num_evictable_slots:
            raise RuntimeError(f"{evictable} KV slots can be evicted, {self.num_evictable_slots} are counted")
        if self._host is not None:
            self._host.check_integrity([n.host_slots for n in self._nodes() if n.host_slots is not None])

    def _walk(self, tokens: Tokens) -> list[RadixNode]:
        """The nodes that spell whole pages of `tokens`, from the root; splits the last one where they end."""
        self._clock += 1
        node, start = self._root, 0
        path = []
        while (child := node.children.get(tokens[start : start + PAGE_SIZE])) is not None:
            shared = _shared_pages(child.key, tokens[start:])
            if shared < len(child.key):
                child = self._split(child, shared)
            child.last_used = self._clock
            path.append(child)
            node, start = child, start + shared
        return path

    def _split(self, node: RadixNode, length: int) -> RadixNode:
        """Cuts `node` in two; returns the new upper part. Locks taken on `node` hold for both."""
        upper = RadixNode(node.key[:length], node.parent, locks=node.locks, last_used=node.last_used)
        upper.children[node.key[length : length + PAGE_SIZE]] = node
        if node.parent is not None:
            node.parent.children[node.key[:PAGE_SIZE]] = upper
        node.parent, node.key = upper, node.key[length:]
        if node.slots is not None:
            upper.slots, node.slots = node.slots[:length], node.slots[length:]
        if node.host_slots is not None:
            upper.host_slots, node.host_slots = node.host_slots[:length], node.host_slots[length:]
        return upper

    def _put(self, node: RadixNode, slots: NDArray[np.int64]) -> None:
        node.slots = slots.copy()
        self.num_evictable_slots += len(slots)

    def _drop_from_device(self, node: RadixNode) -> None:
        if node.slots is None:
            raise RuntimeError("a node without KV was evicted")
        if self._host is not None and node.host_slots is None:
            self._back_up(node, node.slots)
        self._allocator.free(node.slots)
        self.num_evictable_slots -= len(node.key)
        node.slots = None
        if node.host_slots is None:
            self._remove(node)

    def _back_up(self, node: RadixNode, slots: NDArray[np.int64]) -> None:
        """Copies a node into the host tier, if there is room or room can be made."""
        if self._host is None or len(slots) > self._host.num_slots:
            return
        while not self._host.can_allocate(len(slots)):
            oldest = min(
                (n for n in self._nodes() if self._is_host_leaf(n)), key=lambda n: n.last_used, default=None
            )
            if oldest is None:
                return
            self._free_host(oldest)
            if not oldest.on_device:
                self._remove(oldest)
        node.host_slots = self._host.back_up(slots)

    def _free_host(self, node: RadixNode) -> None:
        if self._host is not None and node.host_slots is not None:
            self._host.free(node.host_slots)
            node.host_slots = None

    def _remove(self, node: RadixNode) -> None:
        """Takes a node without KV out of the tree, and with it what only the host has of longer prefixes."""
        for child in list(node.children.values()):
            self._free_host(child)
            self._remove(child)
        if node.parent is not None:
            del node.parent.children[node.key[:PAGE_SIZE]]

    def _is_evictable_leaf(self, node: RadixNode) -> bool:
        return (
            node is not self._root
            and node.on_device
            and not node.locks
            and not any(child.on_device for child in node.children.values())
        )

    def _is_host_leaf(self, node: RadixNode) -> bool:
        """Whether its host copy can go without leaving a gap in what the host has of longer prefixes."""
        below = any(child.host_slots is not None and not child.on_device for child in node.children.values())
        return node.host_slots is not None and not below

    def _nodes(self) -> Iterator[RadixNode]:
        stack = list(self._root.children.values())
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            yield node


def _shared_pages(key: Tokens, tokens: Tokens) -> int:
    """Length of the common prefix, in whole pages."""
    length = 0
    for start in range(0, min(len(key), len(tokens)) - PAGE_SIZE + 1, PAGE_SIZE):
        if key[start : start + PAGE_SIZE] != tokens[start : start + PAGE_SIZE]:
            break
        length = start + PAGE_SIZE
    return length
