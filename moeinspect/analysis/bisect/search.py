"""The search for the smallest sets of switches under which runs still differ (delta debugging).

Sets grow from the likeliest switch on until a run differs; the switch that was added last is then needed,
and the search goes on among those before it (Zeller and Hildebrandt 2002; Junker 2004, QuickXplain, for the
order of preference). If the likeliest switch alone is to blame, that takes three runs. Once a set is found,
everything but a switch of it runs: what differs then has another set to it (Reiter 1987, for the order).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from moeinspect.analysis.bisect.runs import OutOfRunsError, Runs, Switches

Outcome = Literal["clean", "switches", "target", "not-reproduced", "unfinished"]
"""`clean`: there was nothing to search for. `target`: the difference is there without any switch.
`not-reproduced`: it did not come again. `unfinished`: there were no runs left."""

Remains = Literal["nothing", "something", "untried"]
"""What differs when a switch of each set is off: no run did, one did, or not all were made."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Found:
    """The smallest sets that differ, in the order in which they were found.

    An `unfinished` search has the smallest set so far, if any run differed; no switch of the others can be
    spared.
    """

    outcome: Outcome
    sets: tuple[Switches, ...] = ()
    remains: Remains = "nothing"


class Search(Generic[T]):
    """Finds the sets that differ and of which no switch can be spared.

    `differs` judges what came of a run. A clean run on which a set rests is repeated once, since a race need
    not show every time; one run that differs is enough.
    """

    def __init__(self, candidates: Sequence[str], runs: Runs[T], differs: Callable[[T], bool]) -> None:
        self._candidates = list(candidates)
        self._runs = runs
        self._differs_in = differs

    def find(self, *, only_first: bool = False) -> Found:
        """Searches until no set is left, or no run; `only_first`: until one is found."""
        sets: list[Switches] = []
        rest: list[str] | None = None
        try:
            outcome = self._first(sets)
            if outcome != "switches" or only_first:
                return Found(outcome, tuple(sets))
            while (rest := self._still_differing(sets)) is not None:
                sets += self._smallest(rest)
                if not sets[-1]:  # a race in the target, which hid until now
                    return Found("target", (sets[-1],))
                rest = None
        except OutOfRunsError:
            if sets:
                return Found("switches", tuple(sets), "untried" if rest is None else "something")
            differing = [one for one, seen in self._runs.seen.items() if any(map(self._differs_in, seen))]
            return Found("unfinished", tuple(sorted(differing, key=len)[:1]), "untried")
        return Found("switches", tuple(sets))

    def _first(self, sets: list[Switches]) -> Outcome:
        """Puts the first set into `sets`."""
        if not self._differs([]):
            sets += self._smallest(self._candidates)
            everything = self._settled(self._candidates)
            if not sets and not self._differs_again(everything):
                return "not-reproduced"
            if not sets:
                return self._first(sets)
        else:
            sets.append(frozenset())
        return "switches" if sets[0] else "target"

    def _still_differing(self, sets: Sequence[Switches]) -> list[str] | None:
        """The candidates less a switch of each of `sets`, if they still differ; None if they never do."""
        for off in self._breaking(sets):
            rest = [name for name in self._candidates if name not in off]
            if self._differs(rest):
                return rest
        return None

    def _breaking(self, sets: Sequence[Switches]) -> list[Switches]:
        """The smallest choices of one or more switches of each set, those of the fewest switches first."""
        choices = {frozenset[str]()}
        for one in sets:
            wider = {choice | {name} for choice in choices for name in one if not choice & one}
            choices = wider | {choice for choice in choices if choice & one}
            choices = {choice for choice in choices if not any(other < choice for other in choices)}
        return sorted(choices, key=lambda one: (len(one), sorted(map(self._candidates.index, one))))

    def _smallest(self, candidates: Sequence[str]) -> list[Switches]:
        """A smallest set among `candidates`, the likeliest preferred; none if not even all of them differ."""
        needed: list[str] = []
        rest = list(candidates)
        while not needed or not self._differs(needed):
            count = self._fewest(needed, rest) if rest else None
            if count is None:
                return []
            needed.append(rest[count - 1])
            rest = rest[: count - 1]
        return [self._without_spare(self._settled(needed))]

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

    def _settled(self, switches: Sequence[str] | Switches) -> Switches:
        return self._runs.settled(frozenset(switches))

    def _differs(self, switches: Sequence[str] | Switches) -> bool:
        return any(map(self._differs_in, self._runs.of(self._settled(switches))))

    def _differs_again(self, switches: Switches) -> bool:
        """Repeats a run that was clean once; what was clean twice is clean."""
        seen = self._runs.of(switches)
        if not any(map(self._differs_in, seen)) and len(seen) == 1:
            self._runs.again(switches)
        return any(map(self._differs_in, seen))
