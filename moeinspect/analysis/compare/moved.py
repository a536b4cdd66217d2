"""Whose routing rows hold that are wrong in most layers: rows of B, looked up by their expert sets.

Rows are found although some of their cells differ from B's by rounding: a few groups of layers are looked up
each by itself, what most of them say is verified over all layers, and what is too common to be looked up is
asked whether it stands where its neighbours' places go on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.align import Alignment
from moeinspect.analysis.cells import gather, row_keys, set_keys
from moeinspect.analysis.compare.cellwise import CellResults

_MISPLACED = 0.5
"""Share of a row's cells that have to mismatch: rounding changes fewer."""

AGREES = 0.6
"""Share of a misplaced row's cells that have to equal the row it is said to be."""

BETTER_BY = 0.3
"""How much larger that share has to be than the one in place."""

_GROUPS = 8
"""Groups of layers that are looked up."""

_SIZES = (1, 2, 3, 4, 6, 8)
"""Layers of a group: as few as tell most rows of a request apart, since each may be changed by rounding."""

_TOLD_APART = 0.8
_SAMPLED_ROWS = 4096
_BLOCK = 8192
"""Rows that are verified at a time."""

NOWHERE = -1

Numbers = NDArray[np.int64]
Marks = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class MovedRows:
    """Per comparable row [R]: whether it is misplaced, and the row of B (on its row axis) that it holds.

    `source` is the row's own for rows in place, `NOWHERE` for misplaced ones that were not found.
    """

    misplaced: Marks
    source: Numbers
    in_request: Marks
    """Misplaced rows that hold a row of the same request."""

    @property
    def elsewhere(self) -> Marks:
        """Misplaced rows [R] that hold a row of another request."""
        return np.asarray(self.misplaced & (self.source != NOWHERE) & ~self.in_request)

    def among(self, rows: Marks) -> MovedRows:
        """The same for these rows [R] alone: others are neither misplaced nor in place."""
        source = np.where(rows, self.source, NOWHERE)
        return MovedRows(self.misplaced & rows, source, self.in_request & rows)


def find_moved_rows(alignment: Alignment, cells: CellResults) -> MovedRows:
    """Looks every misplaced row up, in its own request first."""
    compared = np.maximum(1, cells.compared.sum(axis=1))
    misplaced = np.asarray(cells.set_mismatch.sum(axis=1) > _MISPLACED * compared)
    source = alignment.b_row.copy()
    in_request = np.zeros(len(alignment), dtype=bool)
    lost = np.flatnonzero(misplaced)
    if not len(lost):
        return MovedRows(misplaced, source, in_request)
    source[lost] = NOWHERE
    finder = _Finder(alignment)
    found = finder.in_request(lost)
    source[lost] = found
    _go_on(alignment, finder, lost, source)
    pair = alignment.pair[lost]
    in_request[lost] = (source[lost] >= finder.first_row[pair]) & (source[lost] < finder.end_row[pair])
    left = lost[source[lost] == NOWHERE]
    if len(left):
        source[left] = finder.anywhere(left)
    return MovedRows(misplaced, source, in_request)


class _Finder:
    """Looks rows of A up among B's."""

    def __init__(self, alignment: Alignment) -> None:
        self._alignment = alignment
        b = alignment.b
        pairs = alignment.pairing.pairs
        self.first_row = np.asarray([b.row_range(y).start for _, y in pairs], dtype=np.int64)
        """First row in B of each pair's request."""
        self.end_row = np.asarray([b.row_range(y).stop for _, y in pairs], dtype=np.int64)
        self._rows = np.concatenate([np.arange(*b.row_range(y).indices(len(b.rows))[:2]) for _, y in pairs])
        self._pair = np.repeat(np.arange(len(pairs)), self.end_row - self.first_row)
        self._groups = self._choose_groups()
        self._keys = self._group_keys("b", self._rows)

    def in_request(self, rows: Numbers) -> Numbers:
        """The row of B [n] in the same request that each of these comparable rows holds."""
        own = self._alignment.pair[rows].astype(np.int64)
        return self._look_up(rows, _salt(own), _salt(self._pair))

    def anywhere(self, rows: Numbers) -> Numbers:
        """The row of B [n], of whatever request."""
        nothing = np.zeros(1, dtype=np.uint64)
        return self._look_up(rows, nothing, nothing)

    def verified(self, rows: Numbers, source: Numbers) -> Marks:
        """Whether the comparable rows [n] agree with those rows of B, and better than with their own."""
        alignment = self._alignment
        agrees = np.zeros(len(rows), dtype=bool)
        for start in range(0, len(rows), _BLOCK):
            block = slice(start, start + _BLOCK)
            asked = np.flatnonzero(source[block] != NOWHERE) + start
            held = self._set_keys("a", rows[asked])
            there = self._set_keys("b", source[asked])
            own = self._set_keys("b", alignment.b_row[rows[asked]])
            share = np.asarray(held == there).mean(axis=1)
            agrees[asked] = (share >= AGREES) & (share - np.asarray(held == own).mean(axis=1) >= BETTER_BY)
        return agrees

    def _look_up(self, rows: Numbers, salt_a: NDArray[np.uint64], salt_b: NDArray[np.uint64]) -> Numbers:
        """What most groups of layers say, if it stands there once and all layers bear it out."""
        votes = np.full((len(self._groups), len(rows)), NOWHERE, dtype=np.int64)
        held = self._group_keys("a", rows)
        for group, (wanted, keys) in enumerate(zip(held, self._keys, strict=True)):
            salted = keys ^ salt_b
            order = np.argsort(salted, kind="stable")
            ordered = salted[order]
            alone = np.ones(len(ordered), dtype=bool)
            alone[1:] &= ordered[1:] != ordered[:-1]
            alone[:-1] &= ordered[1:] != ordered[:-1]
            ordered, order = ordered[alone], order[alone]
            if not len(ordered):
                continue
            at = np.minimum(np.searchsorted(ordered, wanted ^ salt_a), len(ordered) - 1)
            votes[group] = np.where(ordered[at] == (wanted ^ salt_a), self._rows[order[at]], NOWHERE)
        said = np.stack([((votes == vote) & (vote != NOWHERE)).sum(axis=0) for vote in votes])
        best = votes[said.argmax(axis=0), np.arange(len(rows))]
        return np.where(self.verified(rows, best), best, NOWHERE)

    def _choose_groups(self) -> list[Numbers]:
        """Places of the layers of each group, spread over the depth."""
        num_layers = len(self._alignment.layers)
        every = -(-len(self._rows) // _SAMPLED_ROWS) or 1
        sampled = self._pair % every == 0 if every > 1 else np.ones(len(self._rows), dtype=bool)
        keys = self._set_keys("b", self._rows[sampled][: 4 * _SAMPLED_ROWS])
        salt = _salt(self._pair[sampled][: 4 * _SAMPLED_ROWS])
        for size in _SIZES:
            if size >= num_layers:
                break
            places = _spread(num_layers, size, 0)
            _, counts = np.unique(row_keys(keys[:, places]) ^ salt, return_counts=True)
            if (counts == 1).sum() >= _TOLD_APART * len(keys):
                count = min(_GROUPS, num_layers // size)
                return [_spread(num_layers, size, group / count) for group in range(count)]
        return [np.arange(num_layers)]

    def _group_keys(self, side: str, rows: Numbers) -> list[NDArray[np.uint64]]:
        keys = [np.zeros(len(rows), dtype=np.uint64) for _ in self._groups]
        for start in range(0, len(rows), _BLOCK):
            block = slice(start, start + _BLOCK)
            for group, places in enumerate(self._groups):
                keys[group][block] = row_keys(self._set_keys(side, rows[block], places))
        return keys

    def _set_keys(self, side: str, rows: Numbers, places: Numbers | None = None) -> NDArray[np.uint64]:
        """Keys [n, layers] of comparable rows of A, or of rows of B by their place on its row axis."""
        alignment = self._alignment
        chosen = slice(None) if places is None else places
        if side == "a":
            ids = alignment.a.rows.expert_ids
            return set_keys(gather(ids, alignment.a_row[rows], alignment.a_axis[chosen]))
        return set_keys(gather(alignment.b.rows.expert_ids, rows, alignment.b_axis[chosen]))


def _go_on(alignment: Alignment, finder: _Finder, lost: Numbers, source: Numbers) -> None:
    """Rows that were not found get the place that follows from the one before or after them, if it fits.

    That may be in the next request of the file: rows of packed sequences go on across their seams.
    """
    for step in (1, -1):
        left = lost[source[lost] == NOWHERE]
        if not len(left):
            return
        lag = np.where(source == NOWHERE, 0, source - alignment.b_row)
        known = (source != NOWHERE) & (lag != 0)
        index = np.where(known, np.arange(len(source)), -1 if step == 1 else len(source))
        forward = np.maximum.accumulate(index)
        near = (forward if step == 1 else np.minimum.accumulate(index[::-1])[::-1])[left]
        inside = (near >= 0) & (near < len(source))
        near = np.clip(near, 0, len(source) - 1)
        pair = alignment.pair[left]
        wanted = alignment.b_row[left] + lag[near]
        inside &= alignment.pair[near] == pair
        inside &= (wanted >= 0) & (wanted < len(alignment.b.rows))
        wanted = np.where(inside, wanted, NOWHERE)
        source[left] = np.where(finder.verified(left, wanted), wanted, NOWHERE)


def _spread(num_layers: int, size: int, phase: float) -> Numbers:
    """`size` layers at even distances, the last one among them where `phase` is 0."""
    step = num_layers / size
    places = num_layers - 1 - np.floor((np.arange(size) + phase) * step).astype(np.int64)
    return np.sort(places)


def _salt(numbers: NDArray[np.integer]) -> NDArray[np.uint64]:
    return row_keys((numbers.astype(np.uint64) + np.uint64(1))[:, None])
