"""One list of diagnoses out of many."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from moeinspect.analysis.findings import Diagnosis


def ranked(found: Iterable[Diagnosis]) -> tuple[Diagnosis, ...]:
    """Best first, each cause once with the evidence of all that name it; `unknown` only if alone.

    Several names joined by `|` are settled where a better diagnosis has one of them by itself.
    """
    by_cause: dict[str, Diagnosis] = {}
    for one in sorted(found, key=lambda d: -d.confidence):
        cause = next((name for name in one.cause.split("|") if name in by_cause), one.cause)
        best = by_cause.setdefault(cause, one)
        because = tuple(dict.fromkeys(best.because + one.because))
        by_cause[cause] = replace(best, because=because)
    known = [one for one in by_cause.values() if one.cause != "unknown"]
    return tuple(known or by_cause.values())
