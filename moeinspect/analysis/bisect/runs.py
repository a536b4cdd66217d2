"""The runs of a search: each set of switches made once and remembered, up to the most that are allowed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

Switches = frozenset[str]
T = TypeVar("T")


class OutOfRunsError(Exception):
    """The runs that were allowed are used up."""


class Runs(Generic[T]):
    """What came of each set of switches; several searches share one.

    `make` runs a set. `settled` takes those away that mean nothing beside the others, such as a host tier
    without a prefix cache.
    """

    def __init__(
        self,
        make: Callable[[Switches], T],
        settled: Callable[[Switches], Switches] = frozenset,
        *,
        max_runs: int,
    ) -> None:
        self._make = make
        self.settled = settled
        self._left = max_runs
        self._seen: dict[Switches, list[T]] = {}

    @property
    def seen(self) -> Mapping[Switches, list[T]]:
        """What was run so far, in the order in which sets were first tried."""
        return self._seen

    def of(self, switches: Switches) -> list[T]:
        """What came of a settled set, which is run now if it never was.

        Raises:
            OutOfRunsError: it never was, and no run is left.
        """
        if switches not in self._seen:
            self.again(switches)
        return self._seen[switches]

    def again(self, switches: Switches) -> None:
        """Runs a settled set once more.

        Raises:
            OutOfRunsError: no run is left.
        """
        if not self._left:
            raise OutOfRunsError
        self._left -= 1
        self._seen.setdefault(switches, []).append(self._make(switches))
