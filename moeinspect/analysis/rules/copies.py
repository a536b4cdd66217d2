"""Which links between equal rows are more than chance."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.rules.chance import LOG10_LIMIT, log10
from moeinspect.analysis.rules.coincidence import Coincidences
from moeinspect.analysis.rules.links import Links, are_copies
from moeinspect.analysis.rules.runs import run_bounds, spread, true_runs
from moeinspect.analysis.rules.view import TraceView

MIN_ROWS = 2

Floats = NDArray[np.float64]
Chance = Callable[[Floats], Floats]


class CopyJudge:
    """Finds runs of links that are too long for chance.

    Evidence are the different contents of a run that stand under different tokens: rows of the same token
    in a similar context may well be equal. Each is worth the rate at which unrelated rows are equal, or the
    share of rows that hold this very content if that is larger.
    """

    def __init__(self, view: TraceView, coincidences: Coincidences) -> None:
        self.view = view
        self.coincidences = c = coincidences
        self.num_rows_log10 = log10(float(c.rows.sum()))
        self.first_log10 = log10(max(c.random_tail, c.equal_rate))
        self.next_log10 = max(self.first_log10, log10(max(c.successor_tail, c.position_tail)))

    def by_former_owner(self, links: Links) -> Links:
        """Runs of rows that equal their slot's former owner: one place for each row."""
        return self._runs_of_rows(links, lambda each: each, self.num_rows_log10)

    def anywhere(self, links: Links) -> Links:
        """Runs of rows that each equal some row of some other request."""
        return self._runs_of_rows(
            links, lambda each: np.minimum(0.0, each + self.num_rows_log10), self.num_rows_log10
        )

    def stretches(self, links: Links) -> Links:
        """Runs that go in step with the rows of the other request: any pair of rows may start one."""
        links = links.pick(np.lexsort((links.row, links.source - links.row)))
        joined = self.view.joined
        in_step = np.zeros(len(links), dtype=bool)
        in_step[1:] = (np.diff(links.row) == 1) & (np.diff(links.source) == 1)
        in_step &= joined[links.row] & joined[links.source]
        starts, ends = run_bounds(in_step)
        run = np.repeat(np.arange(len(starts)), ends - starts)
        # The first row of a stretch is any pair of rows, which agree less often than rows after equal rows.
        places_log10 = 2 * self.num_rows_log10 + self.first_log10 - self.next_log10
        chance = self._chance(links, run, len(starts), lambda each: each, places_log10)
        chosen = (chance < LOG10_LIMIT) & (ends - starts >= MIN_ROWS)
        links = Links(links.row, links.source, chance[run] if len(run) else links.chance_log10)
        return self._widened(links, starts[chosen], ends[chosen] - 1)

    def _runs_of_rows(self, links: Links, worth: Chance, places_log10: float) -> Links:
        linked = np.zeros(len(self.view.ids), dtype=bool)
        linked[links.row] = True
        firsts, lasts = true_runs(linked, self.view.joined)
        run_of_row = np.full(len(linked), -1, dtype=np.int64)
        run_of_row[spread(firsts, lasts)] = np.repeat(np.arange(len(firsts)), lasts - firsts)
        run = run_of_row[links.row]
        chance = self._chance(links, run, len(firsts), worth, places_log10)
        chosen = (chance < LOG10_LIMIT) & (lasts - firsts >= MIN_ROWS)
        return Links(links.row, links.source, chance[run]).pick(chosen[run])

    def _chance(
        self, links: Links, run: NDArray[np.int64], num_runs: int, worth: Chance, places_log10: float
    ) -> Floats:
        """Decimal logarithm of the chance of each run [num_runs]; 0 for runs that hold no evidence."""
        token, content = self.view.places.token, self.view.content[links.row]
        differs = token[links.row] != token[links.source]
        run, content = run[differs], content[differs]
        order = np.lexsort((content, run))
        run, content = run[order], content[order]
        new = np.ones(len(run), dtype=bool)
        new[1:] = (run[1:] != run[:-1]) | (content[1:] != content[:-1])
        each = np.maximum(self.next_log10, self._share_log10(content[new]))
        total = np.bincount(run[new], weights=worth(each), minlength=num_runs)
        return np.where(np.bincount(run[new], minlength=num_runs) > 0, total + places_log10, 0.0)

    def _share_log10(self, content: NDArray[np.uint64]) -> Floats:
        """Share of other prefixes under which each content [n] stands, the two rows of a link left out."""
        nodes = self.coincidences.nodes
        at = np.searchsorted(self.view.content[nodes], content)
        others = self.coincidences.group_size[at] - 2
        return np.log10(np.maximum(others / len(nodes), 1e-300))

    def _widened(self, links: Links, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Links:
        """Stretches (`ends` inclusive), carried on over equal rows that were too common to be paired."""
        found = links.pick(spread(starts, ends + 1))
        for step, edges in ((-1, starts), (1, ends)):
            edge = links.pick(edges)
            while len(edge):
                edge = self._next_to(edge, step)
                found += edge
        return found

    def _next_to(self, edge: Links, step: int) -> Links:
        """The links one row further, where the rows still are copies."""
        last = len(self.view.ids) - 1
        inside = (np.minimum(edge.row, edge.source) + step >= 0) & (
            np.maximum(edge.row, edge.source) + step <= last
        )
        edge = edge.pick(inside)
        later = int(step > 0)
        joined = self.view.joined[edge.row + later] & self.view.joined[edge.source + later]
        moved = Links(edge.row + step, edge.source + step, edge.chance_log10)
        rows = self.coincidences.rows
        return moved.pick(joined & rows[moved.row] & rows[moved.source] & are_copies(self.view, moved))
