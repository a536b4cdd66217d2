"""One list of diagnoses out of many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from moeinspect.analysis.diagnose.cover import NOISE
from moeinspect.analysis.findings import Diagnosis


@dataclass(frozen=True, slots=True)
class Causes:
    """Diagnoses, best first, and the number of flagged cells that none of their names explains."""

    diagnoses: tuple[Diagnosis, ...] = ()
    to_explain: int = 0
    """Flagged cells that ask for a cause."""

    @property
    def unexplained(self) -> int:
        """Those of them that no cause by name explains; 0 where no cause has a name: `unknown` says it."""
        named = [one.explains for one in self.diagnoses if one.cause != "unknown"]
        return self.to_explain - sum(named) if named else 0

    @property
    def counts(self) -> dict[str, int]:
        """How many flagged cells ask for a cause, and how many get none, where that is so."""
        if not self.unexplained:
            return {}
        return {"cells_to_explain": self.to_explain, "cells_unexplained": self.unexplained}


def ranked(found: Sequence[Diagnosis], rest: Sequence[Diagnosis] = ()) -> Causes:
    """Best first, each cause once with the evidence of all that name it; `unknown` last, or alone.

    Of equal confidence that stands first which explains more. Several names joined by `|` are settled where a
    better diagnosis has one of them by itself. Beside a known cause `unknown` stands only for what is no
    noise: `rest`, or a share of all that asks for a cause.
    """
    by_cause: dict[str, Diagnosis] = {}
    for one in sorted([*found, *rest], key=lambda d: (-d.confidence, -d.explains)):
        cause = next((name for name in one.cause.split("|") if name in by_cause), one.cause)
        if cause not in by_cause:
            by_cause[cause] = one
            continue
        best = by_cause[cause]
        because = tuple(dict.fromkeys(best.because + one.because))
        by_cause[cause] = replace(best, because=because, explains=best.explains + one.explains)
    unknown = by_cause.pop("unknown", None)
    total = sum(one.explains for one in (*found, *rest))
    if unknown is None or (by_cause and not rest and unknown.explains < max(1, NOISE * total)):
        return Causes(tuple(by_cause.values()), total)
    return Causes((*by_cause.values(), unknown), total)
