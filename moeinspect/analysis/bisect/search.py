"""The search for the smallest set of switches under which runs still differ (delta debugging).

Sets grow from the likeliest switch on until a run differs; the switch that was added last is then needed,
and the search goes on among those before it (Zeller and Hildebrandt 2002; Junker 2004, QuickXplain, for the
order of preference). If the likeliest switch alone is to blame, that takes three runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Switches = frozenset[str]

Outcome = Literal["clean", "switches", "target", "not-reproduced", "unfinished"]
"""`clean`: there was nothing to search for. `target`: the difference is there without any switch.
`not-reproduced`: it did not come again. `unfinished`: there were no runs left."""


@dataclass(frozen=True, slots=True)
class Found:
    """The smallest set that differs, as far as the search got; None if no run differed."""

    outcome: Outcome
    switches: Switches | None


class _OutOfRunsError(Exception):
    """The runs that were allowed are used up."""


class Search:
    """Finds a set that differs and of which no switch can be spared.

    `differs` runs a set of switches. `settled` takes those away that mean nothing beside the others, such as
    a host tier without a prefix cache. A clean run on which the answer rests is repeated once, since a race
    need not show every time; one run that differs is enough.
    """

    def __init__(
        self,
        candidates: Sequence[str],
        differs: Callable[[Switches], bool],
        settled: Callable[[Switches], Switches] = frozenset,
        *,
        max_runs: int,
    ) -> None:
        self._candidates = list(candidates)
        self._run_differs = differs
        self._settled = settled
        self._runs_left = max_runs
        self._seen: dict[Switches, list[bool]] = {}

    def find(self) -> Found:
        """Searches until the set is smallest, or there are no runs left."""
        try:
            return self._find()
        except _OutOfRunsError:
            differing = [switches for switches, seen in self._seen.items() if any(seen)]
            return Found("unfinished", min(differing, key=len, default=None))

    def _find(self) -> Found:
        if self._differs([]):
            return Found("target", frozenset())
        if not self._candidates:
            return self._not_reproduced()
        needed: list[str] = []
        rest = self._candidates
        while not needed or not self._differs(needed):
            count = self._fewest(needed, rest)
            if count is None:
                return self._not_reproduced()
            needed.append(rest[count - 1])
            rest = rest[: count - 1]
        smallest = self._without_spare(self._settled(frozenset(needed)))
        return Found("switches" if smallest else "target", smallest)

    def _not_reproduced(self) -> Found:
        """Everything as recorded was clean: once more, and then it is."""
        everything = self._settled(frozenset(self._candidates))
        if self._differs_again(everything):
            return self._find()
        return Found("not-reproduced", None)

    def _fewest(self, needed: list[str], rest: list[str]) -> int | None:
        """How many of the first of `rest` make a run with `needed` differ; None if not even all do."""
        clean, differing = 0, 1
        while not self._differs([*needed, *rest[:differing]]):
            if differing == len(rest):
                return None
            clean, differing = differing, min(2 * differing, len(rest))
        while differing - clean > 1:
            middle = (clean + differing) // 2
            if self._differs([*needed, *rest[:middle]]):
                differing = middle
            else:
                clean = middle
        return differing

    def _without_spare(self, switches: Switches) -> Switches:
        """`switches` less each that can be spared; clean runs with one switch less are repeated."""
        for name in sorted(switches, key=self._candidates.index):
            fewer = self._settled(switches - {name})
            if self._differs(fewer) or self._differs_again(fewer):
                return self._without_spare(fewer)
        return switches

    def _differs(self, switches: Sequence[str] | Switches) -> bool:
        settled = self._settled(frozenset(switches))
        if settled not in self._seen:
            self._run(settled)
        return any(self._seen[settled])

    def _differs_again(self, switches: Switches) -> bool:
        """Repeats a run that was clean once; what was clean twice is clean."""
        if not any(self._seen[switches]) and len(self._seen[switches]) == 1:
            self._run(switches)
        return any(self._seen[switches])

    def _run(self, switches: Switches) -> None:
        if not self._runs_left:
            raise _OutOfRunsError
        self._runs_left -= 1
        self._seen.setdefault(switches, []).append(self._run_differs(switches))
