"""What a bisection tells: the runs that it made, and the set of switches that they name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from moeinspect.analysis.bisect.search import Outcome
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
class Bisection:
    """What one trace came to.

    `recorded` is the comparison of the trace itself, `options` the switches by which its run differs from
    target-only and how each is written on the command line, likeliest first. `smallest` is None where no
    run differed. `command` shows the difference again; `notes` say what it, or the runs, lack.
    """

    recorded: Report
    options: Mapping[str, str]
    trials: tuple[Trial, ...]
    outcome: Outcome
    smallest: tuple[str, ...] | None = None
    command: str = ""
    notes: tuple[str, ...] = ()

    @property
    def shown_by(self) -> Trial | None:
        """The first run of the smallest set that differed."""
        fitting = (one for one in self.trials if one.switches == self.smallest and one.report.differs)
        return next(fitting, None)

    @property
    def cause(self) -> Diagnosis | None:
        """The likeliest cause of what the smallest set shows."""
        diagnoses = self.shown_by.report.diagnoses if self.shown_by else ()
        return diagnoses[0] if diagnoses else None


def cells_differ(report: Report) -> int:
    """Compared cells with other experts, another order or other weights."""
    return sum(report.counts.get(f"{kind}_mismatch_cells", 0) for kind in ("set", "order", "weight"))
