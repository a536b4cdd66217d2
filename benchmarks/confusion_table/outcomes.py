"""What came of one run, and what counts as found, as named right and as a false alarm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

GOAL_FIRST = 0.95
"""Share of the found faults whose own name has to stand first."""

AMONG = 3
"""Causes among which a fault's own name always has to be."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What `diff` said of one run.

    `key` repeats it. `same` tells that the trace has, bit for bit, the rows of its baseline: a fault that
    left it so never met what triggers it. `note` says why there was no report.
    """

    key: str
    fault: str
    model: str
    command: str
    verdict: str = ""
    causes: tuple[str, ...] = ()
    confidences: tuple[float, ...] = ()
    rules: tuple[str, ...] = ()
    same: bool = False
    note: str = ""
    seconds: float = 0.0

    @property
    def state(self) -> str:
        """`not run`, `inert`, `found` or `missed` with a fault; `clean` or `alarm` without."""
        if self.note:
            return "not run"
        if not self.fault:
            return "clean" if self.verdict == "clean" else "alarm"
        if self.verdict == "findings":
            return "alarm" if self.same else "found"
        return "inert" if self.same else "missed"

    @property
    def rank(self) -> int:
        """Place of the fault's own name among the causes, from 1; 0 if it is not among them."""
        return next(
            (place for place, cause in enumerate(self.causes, 1) if self.fault in cause.split("|")), 0
        )


@dataclass(slots=True)
class Tally:
    """The runs of one fault, of all faults, or of none."""

    runs: int = 0
    states: Counter[str] = field(default_factory=Counter)
    first: int = 0
    alone: int = 0
    """Own name first, and the only one of that cause."""
    among: int = 0
    first_causes: Counter[str] = field(default_factory=Counter)

    def add(self, one: Outcome) -> None:
        """Takes in one run."""
        self.runs += 1
        self.states[one.state] += 1
        if one.state != "found":
            return
        self.first += one.rank == 1
        self.alone += one.rank == 1 and one.causes[0] == one.fault
        self.among += 1 <= one.rank <= AMONG
        self.first_causes[one.causes[0] if one.causes else "(none)"] += 1

    @property
    def effective(self) -> int:
        """Runs in which the fault changed something."""
        return self.states["found"] + self.states["missed"]


def tally(outcomes: Sequence[Outcome]) -> Tally:
    """Of all these runs together."""
    total = Tally()
    for one in outcomes:
        total.add(one)
    return total


def failed_goals(outcomes: Sequence[Outcome], fewest_healthy: int = 0) -> list[str]:
    """What was aimed at and missed, in words."""
    faulty = tally([one for one in outcomes if one.fault])
    healthy = tally([one for one in outcomes if not one.fault])
    found = faulty.states["found"]
    failed = []
    if faulty.states["missed"]:
        failed.append(f"{faulty.states['missed']} of {faulty.effective} runs with a fault were not found")
    if faulty.first < GOAL_FIRST * found:
        failed.append(f"the right cause stands first in {faulty.first} of {found} only")
    if faulty.among < found:
        failed.append(f"the right cause is not among the first {AMONG} in {found - faulty.among} of {found}")
    alarms = faulty.states["alarm"] + healthy.states["alarm"]
    if alarms:
        failed.append(f"{alarms} false alarms")
    if faulty.states["not run"] + healthy.states["not run"]:
        failed.append(f"{faulty.states['not run'] + healthy.states['not run']} runs gave no report")
    if healthy.states["clean"] < fewest_healthy:
        failed.append(f"{healthy.states['clean']} healthy runs were clean, fewer than {fewest_healthy}")
    return failed
