"""Whose routing wrong rows hold: their ids, looked up among the right rows."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.cells import row_keys, set_keys
from moeinspect.analysis.diagnose.mismatch import Mismatch

_SAMPLED_ROWS = 4096
"""Wrong rows that are looked up, spread over all of them."""

_COMMON = ("right", "_all_right")
"""What depends on the baseline and the layers in question alone."""

Numbers = NDArray[np.int64]
Marks = NDArray[np.bool_]


class Sources:
    """Looks wrong rows of A up among B's rows: "the row of which other token does A hold here?"

    A row is found at a *place* if some right row that A puts at that place has the same sets in all layers in
    question.
    Rows are places among the R comparable rows.
    """

    def __init__(self, mismatch: Mismatch, like: Sources | None = None) -> None:
        """Takes from `like`, made of the same comparison, what it has looked up in the same layers."""
        self._mismatch = mismatch
        if like is not None and np.array_equal(mismatch.places_in_question, like._layers):
            self.__dict__ |= {name: like.__dict__[name] for name in _COMMON if name in like.__dict__}
        wrong = np.flatnonzero(mismatch.rows)
        self.rows: Numbers = wrong[:: -(-len(wrong) // _SAMPLED_ROWS) or 1]
        """Wrong rows that are looked up [n]."""
        self.is_sample = len(self.rows) < len(wrong)

    def __len__(self) -> int:
        return len(self.rows)

    def spread(self, marks: Marks) -> Marks:
        """Rows [R] for looked-up rows [n]; a wrong row that was not looked up goes with the one before."""
        wrong = np.flatnonzero(self._mismatch.rows)
        rows = np.zeros(len(self._mismatch.alignment), dtype=bool)
        rows[wrong] = marks[np.searchsorted(self.rows, wrong, side="right") - 1]
        return rows

    @cached_property
    def _layers(self) -> Numbers:
        return self._mismatch.places_in_question

    @cached_property
    def held(self) -> NDArray[np.uint64]:
        """Key of what each looked-up row [n] holds."""
        return row_keys(set_keys(self._mismatch.ids_in_question("a", self.rows)))

    @cached_property
    def right(self) -> NDArray[np.uint64]:
        """Key of the right row at each of the R comparable rows."""
        everything = np.arange(len(self._mismatch.alignment), dtype=np.int64)
        return row_keys(set_keys(self._mismatch.ids_in_question("b", everything)))

    @cached_property
    def anywhere(self) -> Marks:
        """Looked-up rows [n] that hold some other token's row."""
        return np.asarray(np.isin(self.held, self._all_right))

    @cached_property
    def elsewhere(self) -> Marks:
        """Looked-up rows [n] found among those of another request."""
        pair = self._mismatch.alignment.pair.astype(np.int64)
        held = np.unique(np.stack([self.right, pair.astype(np.uint64)], axis=1), axis=0)[:, 0]
        holders, requests = np.unique(held, return_counts=True)
        at = np.minimum(np.searchsorted(holders, self.held), len(holders) - 1)
        others = np.where(holders[at] == self.held, requests[at], 0)
        return np.asarray(others > self.in_request)

    @cached_property
    def in_any_step(self) -> Marks:
        """Looked-up rows [n] found among those that any worker computed in a step of the same number."""
        places = _place(self._step, np.zeros_like(self._step))
        return self._found(places[self.rows], places, self._step >= 0)

    def at_step(self, distance: int) -> Marks:
        """Looked-up rows [n] found among those that the same worker computed `distance` steps later."""
        known = self._step >= 0
        places = _place(self._worker, self._step)
        wanted = _place(self._worker[self.rows], self._step[self.rows] + distance)
        return self._found(wanted, places, known)

    @cached_property
    def before(self) -> Marks:
        """Looked-up rows [n] found among those that the same worker computed in earlier steps."""
        known = np.flatnonzero(self._step >= 0)
        if not len(known):
            return np.zeros(len(self.rows), dtype=bool)
        keys = self.right[known] ^ _place(self._worker[known], np.zeros_like(known))
        order = np.lexsort((self._step[known], keys))
        keys, first_step = keys[order], self._step[known][order]
        held = self.held ^ _place(self._worker[self.rows], np.zeros_like(self.rows))
        at = np.minimum(np.searchsorted(keys, held), len(keys) - 1)
        return np.asarray((keys[at] == held) & (first_step[at] < self._step[self.rows]))

    @cached_property
    def in_slot(self) -> Marks:
        """Looked-up rows [n] found among those that held the same KV slot of the same worker."""
        known = self._slot >= 0
        places = _place(self._worker, self._slot)
        return self._found(places[self.rows], places, known)

    @cached_property
    def at_position(self) -> Marks:
        """Looked-up rows [n] found at the same position of another request, whether A has that one or not."""
        b = self._mismatch.comparison.b
        position = np.full(len(b.rows), -1, dtype=np.int64)
        for request in range(len(b.requests)):
            own = b.row_range(request)
            position[own] = np.arange(own.stop - own.start) + int(b.requests.start_pos[request])
        wanted = _place(self._position[self.rows], np.zeros_like(self.rows))
        return np.asarray(
            np.isin(self.held ^ wanted, self._all_right ^ _place(position, np.zeros_like(position)))
        )

    @cached_property
    def _all_right(self) -> NDArray[np.uint64]:
        """Key of each row of B, also of those that A has no row for."""
        rows = self._mismatch.comparison.b.rows
        layers = self._mismatch.alignment.b_axis[self._mismatch.places_in_question]
        return row_keys(set_keys(rows.expert_ids[:, layers]))

    def at_lag(self, distance: int) -> Marks:
        """Looked-up rows [n] found `distance` positions later in the same request."""
        pair = self._mismatch.alignment.pair.astype(np.int64)
        wanted = _place(pair[self.rows], self._position[self.rows] + distance)
        return np.asarray(np.isin(self.held ^ wanted, self.right ^ _place(pair, self._position)))

    @cached_property
    def in_request(self) -> Marks:
        """Looked-up rows [n] found at another position of the same request."""
        pair = self._mismatch.alignment.pair.astype(np.int64)
        places = _place(pair, np.zeros_like(pair))
        return self._found(places[self.rows], places, np.ones(len(places), dtype=bool))

    def _found(self, wanted: NDArray[np.uint64], places: NDArray[np.uint64], known: Marks) -> Marks:
        return np.asarray(np.isin(self.held ^ wanted, (self.right ^ places)[known]))

    @cached_property
    def _step(self) -> Numbers:
        return self._mismatch.of_a("step")

    @cached_property
    def _worker(self) -> Numbers:
        return self._mismatch.of_a("worker")

    @cached_property
    def _slot(self) -> Numbers:
        return self._mismatch.of_a("slot")

    @cached_property
    def _position(self) -> Numbers:
        return self._mismatch.alignment.position


def _place(first: Numbers, second: Numbers) -> NDArray[np.uint64]:
    """A key per pair of numbers [n], to be joined with row keys."""
    return row_keys(np.stack([first + 1, second + (1 << 32)], axis=1).astype(np.uint64))
