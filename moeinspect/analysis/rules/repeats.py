"""Runs of equal rows and the chance of each: shared by `filler-rows` and `repeated-rows`."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.rules.chance import log10
from moeinspect.analysis.rules.coincidence import Coincidences
from moeinspect.analysis.rules.numbering import cell_log10
from moeinspect.analysis.rules.runs import count_distinct, run_bounds, spread
from moeinspect.analysis.rules.view import TraceView

MIN_ROWS = 4
MIN_ENTRIES = 8
"""Rows with fewer (layer, slot) entries are too short to be nearly equal."""
MIN_POSSIBLE_LOG10 = 2.0
"""Where a row is one of less than a hundred, a request may well keep to one for as long as it lasts."""
MIN_STEPS = 8
"""A request with fewer pairs of neighbours tells no rate."""


class RepeatModel:
    """Maximal runs of rows that are equal in all checked layers, among `rows` [R] of a view.

    Run i covers rows [`first[i]`, `last[i]`) of the file and `num_tokens[i]` different tokens. Only these
    are evidence: a model that is fed the same token again and again may well route it the same way.
    """

    def __init__(self, view: TraceView, rows: NDArray[np.bool_]) -> None:
        self.view = view
        self.rows = rows
        index = np.flatnonzero(rows).astype(np.int64)
        linked = np.zeros(len(index), dtype=bool)
        content = view.content[index]
        linked[1:] = (np.diff(index) == 1) & view.joined[index[1:]] & (content[1:] == content[:-1])
        starts, ends = run_bounds(linked)
        self.first: NDArray[np.int64] = index[starts]
        self.last: NDArray[np.int64] = index[ends - 1] + 1
        self.content: NDArray[np.uint64] = content[starts]

    @property
    def long_runs(self) -> NDArray[np.int64]:
        """Runs of `MIN_ROWS` rows or more."""
        return np.flatnonzero(self.last - self.first >= MIN_ROWS).astype(np.int64)

    @cached_property
    def num_tokens(self) -> NDArray[np.int64]:
        """Different tokens of each run."""
        tokens = np.ones(len(self.first), dtype=np.int64)
        longer = np.flatnonzero(self.last - self.first > 1)
        first, last = self.first[longer], self.last[longer]
        owner = np.repeat(np.arange(len(longer)), last - first)
        tokens[longer] = count_distinct(owner, self.view.places.token[spread(first, last)], len(longer))
        return tokens

    @cached_property
    def coincidences(self) -> Coincidences:
        """How often unrelated rows are equal."""
        return Coincidences(self.view, self.rows)

    def chance_log10(self, run: int) -> float:
        """Chance that such a run stands anywhere in a healthy trace like this one."""
        num_rows = float(self.rows.sum())
        steps = int(self.num_tokens[run]) - 1
        return min(0.0, log10(num_rows) + steps * log10(self._step_chance(run)))

    def habit_log10(self, run: int) -> float:
        """Chance of so long a run if this very row is a habit of the model, from its runs of 1 to 3 rows.

        The row begins a run at the rate at which such runs follow other rows, and goes on at that rate or
        at the one that their lengths show, whichever is larger. No short run: no habit.
        """
        same = self.content == self.content[run]
        lengths = (self.last - self.first)[same]
        n1, n2, n3 = (int(n) for n in np.bincount(np.minimum(lengths, 4), minlength=4)[1:4])
        num_rows = int(self.rows.sum())
        begin = (n1 + n2 + n3) / max(1, num_rows - int(lengths.sum()))
        step = min(1.0, max(begin, (n2 + n3) / max(1, n1 + n2)))
        length = int(self.last[run] - self.first[run])
        return min(0.0, log10(num_rows * begin) + (length - 1) * log10(step))

    def _step_chance(self, run: int) -> float:
        """Chance that the row of another token continues the run: the largest of what the trace suggests."""
        if self._possible_rows_log10 < MIN_POSSIBLE_LOG10:
            return 1.0
        own = max(self._short_run_rate(run), self._return_rate(run))
        if self.num_entries < MIN_ENTRIES:
            own = max(own, self._plain_rate(run))
        return min(1.0, max(own, self.coincidences.any_rate))

    def _short_run_rate(self, run: int) -> float:
        """How often a run goes on, from the runs of at most three tokens, this one left out.

        If a run goes on with chance s, runs of 1, 2 and 3 tokens are as frequent as 1 : s : s * s; long runs,
        which a fault may have made, need not be looked at.
        """
        n1, n2, n3 = self._runs_by_tokens
        n2 -= int(self.num_tokens[run] == 2)
        n3 -= int(self.num_tokens[run] == 3)
        return (n2 + n3) / max(1, n1 + n2)

    @cached_property
    def _runs_by_tokens(self) -> tuple[int, int, int]:
        counts = np.bincount(self.num_tokens, minlength=4)
        return int(counts[1]), int(counts[2]), int(counts[3])

    def return_chance(self, first: int, last: int) -> float:
        """Chance that a row comes back under another token within a request, rows [first, last) left out.

        Where rows are too short to be nearly equal, the request whose rows are most alike decides.
        """
        rate = self.coincidences.any_rate
        if self.num_entries >= MIN_ENTRIES:
            return rate
        others = self.rows.copy()
        others[first:last] = False
        request, content = self.view.places.request[others], self.view.content[others]
        order = np.lexsort((content, request))
        request, content = request[order], content[order]
        new = np.ones(len(order), dtype=bool)
        new[1:] = (request[1:] != request[:-1]) | (content[1:] != content[:-1])
        alike = np.diff(np.append(np.flatnonzero(new), len(order))).astype(np.float64)
        equal = np.bincount(request[new], weights=alike * (alike - 1))
        total = np.bincount(request).astype(np.float64)
        enough = total >= MIN_STEPS
        rates = equal[enough] / (total * (total - 1))[enough]
        return max(rate, float(rates.max())) if enough.any() else 1.0

    def _plain_rate(self, run: int) -> float:
        """How often a row of another token continues a run, in the request where it is most frequent.

        Needed where a row has so few entries that nearly equal rows cannot be told from unrelated ones: there
        long runs of equal rows may be this model's way, in some requests more than in others. This run is
        left out.
        """
        request = self.view.places.request[self.first]
        steps = self.num_tokens - 1
        steps[run] = 0
        equal = np.bincount(request, weights=steps)
        all_steps = np.bincount(request) + equal
        enough = all_steps >= MIN_STEPS
        return float((equal / np.maximum(1, all_steps))[enough].max()) if enough.any() else 1.0

    @property
    def _possible_rows_log10(self) -> float:
        """How many different rows there can be."""
        return -len(self.view.checked_layers) * cell_log10(self.view)

    @property
    def num_entries(self) -> int:
        """(layer, slot) entries of a row that are compared."""
        return len(self.view.checked_layers) * self.view.top_k

    def _return_rate(self, run: int) -> float:
        """How often other rows are followed by a run of this content, this run left out."""
        same = self.content == self.content[run]
        rows_of_it = int((self.last - self.first)[same].sum())
        return (int(same.sum()) - 1) / max(1, int(self.rows.sum()) - rows_of_it)
