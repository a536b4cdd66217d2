"""How often unrelated rows of a trace are equal, measured on the trace itself.

Rows of different tokens are compared; rows of the same token may be equal for a good reason. Two measures
are joined: the rate at which rows really are equal, and how far unequal rows agree, carried on to full
agreement (`chance.agreement_tail`). The first knows traces in which rows are often equal, the second those
in which they never are; equal rows that a fault made leave no nearly equal ones behind.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.rules.chance import agreement_tail
from moeinspect.analysis.rules.runs import spread
from moeinspect.analysis.rules.view import TraceView

MAX_PAIRS = 200_000
"""Pairs that are sampled to see how far unequal rows agree."""
MIN_PAIRS = 30
"""Fewer special pairs (neighbours, successors) say nothing of their own."""
MAX_ENUMERATED = 16
"""Contents that stand under more prefixes than this are common: counted, but not paired one by one."""


@dataclass(frozen=True, slots=True)
class EqualPairs:
    """Pairs of rows with equal content under different token prefixes: rows of the file, a < b."""

    a: NDArray[np.int64]
    b: NDArray[np.int64]
    token_differs: NDArray[np.bool_]


class Coincidences:
    """Statistics over `rows` [R] of a view, each (content, token prefix) taken once."""

    def __init__(self, view: TraceView, rows: NDArray[np.bool_]) -> None:
        self.view = view
        self.rows = rows
        index = np.flatnonzero(rows).astype(np.int64)
        prefix, content = view.places.prefix[index], view.content[index]
        order = np.lexsort((index, prefix, content))
        new = np.ones(len(order), dtype=bool)
        c, p = content[order], prefix[order]
        new[1:] = (c[1:] != c[:-1]) | (p[1:] != p[:-1])
        self.nodes: NDArray[np.int64] = index[order][new]
        """First row of each (content, prefix) [n], sorted by content."""
        self.first_row: NDArray[np.int64] = np.full(len(rows), -1, dtype=np.int64)
        """For each row [R] the first one with the same content and prefix, -1 for rows left out."""
        self.first_row[index[order]] = self.nodes[np.cumsum(new) - 1] if len(index) else self.nodes

    @cached_property
    def group_size(self) -> NDArray[np.int64]:
        """For each node [n], the number of prefixes under which its content stands."""
        starts = self._group_starts
        sizes = np.diff(np.append(starts, len(self.nodes)))
        return np.repeat(sizes, sizes).astype(np.int64)

    @cached_property
    def _group_starts(self) -> NDArray[np.int64]:
        content = self.view.content[self.nodes]
        new = np.ones(len(content), dtype=bool)
        new[1:] = content[1:] != content[:-1]
        return np.flatnonzero(new).astype(np.int64)

    @cached_property
    def pairs(self) -> EqualPairs:
        """Equal rows under different prefixes, contents that are common left out."""
        starts = self._group_starts
        sizes = np.diff(np.append(starts, len(self.nodes)))
        small = (sizes > 1) & (sizes <= MAX_ENUMERATED)
        first, second = _pairs_in_groups(starts[small], sizes[small])
        x, y = self.nodes[first], self.nodes[second]
        a, b = np.minimum(x, y), np.maximum(x, y)
        token = self.view.places.token
        return EqualPairs(a, b, token[a] != token[b])

    @cached_property
    def equal_rate(self) -> float:
        """Share of pairs of rows with different tokens that are equal by themselves.

        Pairs that go in step with another equal pair and rows inside one run of equal rows are left out:
        they are what is judged. Where rows are equal by chance, most equal pairs stand alone.
        """
        token = self.view.places.token
        n_pairs = _num_unlike_pairs(token[self.nodes])
        if n_pairs == 0:
            return 1.0
        pairs = self.pairs
        alone = pairs.token_differs & ~self._same_run(pairs)
        alone &= ~self._in_step(pairs, -1) & ~self._in_step(pairs, 1)
        equal = int(alone.sum()) + self._num_common_pairs()
        return min(1.0, float(equal + 3 * equal**0.5) / n_pairs)

    def _num_common_pairs(self) -> int:
        common = self.group_size > MAX_ENUMERATED
        if not common.any():
            return 0
        nodes = self.nodes[common]
        content, token = self.view.content[nodes], self.view.places.token[nodes]
        _, per_content = np.unique(content, return_counts=True)
        order = np.lexsort((token, content))
        c, t = content[order], token[order]
        new = np.ones(len(c), dtype=bool)
        new[1:] = (c[1:] != c[:-1]) | (t[1:] != t[:-1])
        per_both = np.diff(np.append(np.flatnonzero(new), len(c)))
        return int(_choose2(per_content) - _choose2(per_both))

    def _in_step(self, pairs: EqualPairs, step: int) -> NDArray[np.bool_]:
        """Pairs whose rows are followed (1) or preceded (-1) by rows equal under different tokens, too."""
        content, token, request = self.view.content, self.view.places.token, self.view.places.request
        last = len(self.rows) - 1
        a, b = np.clip(pairs.a + step, 0, last), np.clip(pairs.b + step, 0, last)
        both = self.rows[a] & self.rows[b] & (a != pairs.a) & (b != pairs.b)
        both &= (request[a] == request[pairs.a]) & (request[b] == request[pairs.b])
        in_step: NDArray[np.bool_] = both & (content[a] == content[b]) & (token[a] != token[b])
        return in_step

    def _same_run(self, pairs: EqualPairs) -> NDArray[np.bool_]:
        run = self.view.content_run
        same: NDArray[np.bool_] = run[pairs.a] == run[pairs.b]
        return same

    @cached_property
    def any_rate(self) -> float:
        """How likely two rows of different tokens, perhaps near each other, are equal."""
        return max(self.equal_rate, self.random_tail, self.neighbour_tail)

    @cached_property
    def random_tail(self) -> float:
        """Full agreement as two rows picked at random suggest it."""
        a, b = _sample_pairs(len(self.nodes))
        return agreement_tail(self._histogram(self.nodes[a], self.nodes[b]))

    @cached_property
    def neighbour_tail(self) -> float:
        """Full agreement as rows one or two places apart suggest it; 0 where there are too few."""
        next_to = [self._following(distance) for distance in (1, 2)]
        return self._special_tail(
            np.concatenate([a for a, _ in next_to]), np.concatenate([b for _, b in next_to])
        )

    @cached_property
    def successor_tail(self) -> float:
        """Full agreement as the rows after equal rows suggest it; 0 where there are too few."""
        a, b = self.pairs.a + 1, self.pairs.b + 1
        inside = b < len(self.rows)
        a, b = a[inside], b[inside]
        follow = self.view.joined[a] & self.view.joined[b] & self.rows[a] & self.rows[b]
        return self._special_tail(a[follow], b[follow])

    @cached_property
    def position_tail(self) -> float:
        """Full agreement as rows at one position of different requests suggest it; 0 where too few."""
        order = self.nodes[np.lexsort((self.nodes, self.view.places.position[self.nodes]))]
        position = self.view.places.position[order]
        parts = []
        for distance in (1, 2, 3):
            same = np.flatnonzero(position[distance:] == position[:-distance])
            parts.append((order[same], order[same + distance]))
        a, b = np.concatenate([a for a, _ in parts]), np.concatenate([b for _, b in parts])
        return self._special_tail(a, b)

    def _following(self, distance: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        request = self.view.places.request
        both = self.rows[distance:] & self.rows[:-distance] & (request[distance:] == request[:-distance])
        first = np.flatnonzero(both).astype(np.int64)
        return first, first + distance

    def _special_tail(self, a: NDArray[np.int64], b: NDArray[np.int64]) -> float:
        if len(a) > MAX_PAIRS:
            chosen = np.random.default_rng(1).choice(len(a), MAX_PAIRS, replace=False)
            a, b = a[chosen], b[chosen]
        histogram = self._histogram(a, b)
        return agreement_tail(histogram) if histogram.sum() >= MIN_PAIRS else 0.0

    def _histogram(self, a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
        """Agreeing entries of pairs of unequal rows with different tokens and prefixes [m + 1]."""
        places, content = self.view.places, self.view.content
        unlike = (places.token[a] != places.token[b]) & (content[a] != content[b])
        unlike &= places.prefix[a] != places.prefix[b]
        a, b = a[unlike], b[unlike]
        layers = self.view.checked_layers
        m = len(layers) * self.view.top_k
        counts = np.zeros(m + 1, dtype=np.int64)
        whole = len(layers) == self.view.ids.shape[1]
        chunk = max(1, (1 << 23) // m)
        for first in range(0, len(a), chunk):
            x, y = self.view.ids[a[first : first + chunk]], self.view.ids[b[first : first + chunk]]
            equal = (x == y) if whole else (x[:, layers] == y[:, layers])
            counts += np.bincount(equal.reshape(len(x), -1).sum(axis=1), minlength=m + 1)
        return counts


def _pairs_in_groups(
    starts: NDArray[np.int64], sizes: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All pairs of members of groups that stand one after another: member i of `size` has size - 1 - i."""
    member = spread(starts, starts + sizes)
    rank = member - np.repeat(starts, sizes)
    partners = np.repeat(sizes, sizes) - 1 - rank
    first = np.repeat(member, partners)
    return first, spread(member + 1, member + 1 + partners)


def _sample_pairs(n: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Pairs of 0..n-1: all of them where they are few, else a sample that is the same each time."""
    if n * (n - 1) // 2 <= MAX_PAIRS:
        return np.triu_indices(n, 1)
    rng = np.random.default_rng(0)
    return rng.integers(0, n, MAX_PAIRS), rng.integers(0, n, MAX_PAIRS)


def _num_unlike_pairs(token: NDArray[np.int64]) -> float:
    """Number of pairs of rows whose tokens differ."""
    _, counts = np.unique(token, return_counts=True)
    n = len(token)
    return n * (n - 1) / 2 - _choose2(counts)


def _choose2(counts: NDArray[np.int64]) -> float:
    return float((counts.astype(np.float64) * (counts - 1) / 2).sum())
