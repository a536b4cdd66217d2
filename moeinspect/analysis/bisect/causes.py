"""Which causes that a trace was recorded with the sets that were found do not show."""

from __future__ import annotations

from collections.abc import Iterable

from moeinspect.analysis.bisect.bisection import shares_a_name
from moeinspect.analysis.findings import Diagnosis, Report

_LIKELY = 0.5
"""Confidence from which on a cause is worth runs of its own."""

_NO_CAUSE = ("unknown", "numerics", "tokens-diverged")


def not_shown(recorded: Report, shown: Iterable[Diagnosis]) -> tuple[Diagnosis, ...]:
    """The likely causes of `recorded` of which no name is among those of `shown`, likeliest first.

    A difference whose switches hold those of another one is in no set of its own; its cause tells.
    """
    known = tuple(shown)
    return tuple(
        one
        for one in recorded.diagnoses
        if one.confidence >= _LIKELY and one.cause not in _NO_CAUSE and not shares_a_name(one, known)
    )
