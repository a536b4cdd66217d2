"""What a bisection tells: the runs that it made, and the sets of switches that they name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from moeinspect.analysis.bisect.search import Outcome, Remains
from moeinspect.analysis.findings import Diagnosis, Report


@dataclass(frozen=True, slots=True)
class Trial:
    """One run with some of the switches, compared with a target-only run of the same requests.

    `again`: a run with these switches was clean before. `seconds` are of the run and the comparison.
    """

    switches: tuple[str, ...]
    report: Report
    seconds: float
    again: bool = False

    @property
    def cells_differ(self) -> int:
        """Compared cells with other experts, another order or other weights."""
        return cells_differ(self.report)


@dataclass(frozen=True, slots=True)
class SmallestSet:
    """Switches that bring a difference, of which none can be spared: all off where it is in the target.

    `causes` are what the first run of the set that differed came to, likeliest first. `command` shows the
    difference again.
    """

    switches: tuple[str, ...]
    causes: tuple[Diagnosis, ...] = ()
    command: str = ""


@dataclass(frozen=True, slots=True)
class Bisection:
    """What one trace came to.

    `recorded` is the comparison of the trace itself, `options` the switches by which its run differs from
    target-only and how each is written on the command line, likeliest first. `sets` are in the order in
    which they were found; there are none if no run differed. `remains` says what differs without them.
    `notes` say what the runs or the commands lack.
    """

    recorded: Report
    options: Mapping[str, str]
    trials: tuple[Trial, ...]
    outcome: Outcome
    sets: tuple[SmallestSet, ...] = ()
    remains: Remains = "nothing"
    notes: tuple[str, ...] = ()

    @property
    def causes(self) -> tuple[Diagnosis, ...]:
        """The likeliest cause of what each set shows."""
        return tuple(one.causes[0] for one in self.sets if one.causes)


def cells_differ(report: Report) -> int:
    """Compared cells with other experts, another order or other weights."""
    return sum(report.counts.get(f"{kind}_mismatch_cells", 0) for kind in ("set", "order", "weight"))


def shares_a_name(one: Diagnosis, others: Iterable[Diagnosis]) -> bool:
    """Whether one of `others` may be the same cause: names joined by `|` stand for any of them."""
    names = set(one.cause.split("|"))
    return any(names.intersection(other.cause.split("|")) for other in others)
