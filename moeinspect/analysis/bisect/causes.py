"""What the sets that were found say of causes: which are not among them, and which they rule out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from moeinspect.analysis.bisect.bisection import shares_a_name
from moeinspect.analysis.bisect.runs import Switches
from moeinspect.analysis.diagnose.catalogue import references_of
from moeinspect.analysis.findings import Diagnosis, Report

_LIKELY = 0.5
"""Confidence from which on a cause is worth runs of its own."""

_NEEDED: dict[str, Switches] = {
    "draft-capture": frozenset({"draft"}),
    "bypass-drops-flag": frozenset({"draft", "backend"}),
    "ungated-backend": frozenset({"draft", "backend"}),
    "draft-optout-late": frozenset({"draft", "graph"}),
    "draft-forward-end": frozenset({"draft", "draft_topk", "overlap"}),
    "tree-rows": frozenset({"draft", "draft_topk"}),
    "init-order": frozenset(),
    "kernel-uncaptured": frozenset({"backend"}),
    "verify-dropped": frozenset({"draft", "overlap"}),
    "pp-stage": frozenset({"pp_size"}),
    "no-merge": frozenset({"disagg"}),
    "skip-finalize-prefill": frozenset({"disagg", "overlap"}),
}
"""The switches that bring a cause, and no others do, of those that data cannot tell apart."""

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


def same_difference(one: Report, other: Report) -> bool:
    """Whether two runs of the same requests are wrong in the same places, whatever causes they look like."""
    return _places(one) == _places(other)


def _places(report: Report) -> set[tuple[object, ...]]:
    return {
        (finding.input, finding.request, finding.rows, finding.layers)
        for finding in report.findings
        if finding.severity != "note"
    }


def settled_by(switches: Switches, cause: Diagnosis) -> Diagnosis:
    """`cause` with those of its names that need `switches`, a smallest set, where any do.

    Another name would show with less, or not with these.
    """
    names = cause.cause.split("|")
    fitting = [name for name in names if _NEEDED.get(name) == switches]
    others = [name for name in names if name not in fitting]
    if not fitting or not others:
        return cause
    needed = " and ".join(sorted(name.replace("_", "-") for name in switches)) or "every switch off"
    return replace(
        cause,
        cause="|".join(fitting),
        because=(*cause.because, f"runs differ with {needed} and not with less: not {' or '.join(others)}"),
        reference=references_of(fitting),
    )
