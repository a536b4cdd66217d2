"""A diagnosis with its references, and the command that runs again with one switch turned."""

from __future__ import annotations

from collections.abc import Sequence

from moeinspect.analysis.diagnose.catalogue import CAUSES, references_of
from moeinspect.analysis.diagnose.facts import run_facts
from moeinspect.analysis.diagnose.rerun import run_again
from moeinspect.analysis.findings import Diagnosis
from moeinspect.analysis.requests import LOCAL
from moeinspect.trace.schema import Trace

MOST_NAMES = 4
"""Names that one cause may join."""


def diagnosis(
    cause: str,
    confidence: float,
    because: Sequence[str],
    trace: Trace,
    *,
    next_step: str | None = None,
    explains: int = 0,
) -> Diagnosis:
    """A diagnosis with the references and the next step of its cause (names joined by `|`)."""
    names = cause.split("|")
    return Diagnosis(
        cause=cause,
        confidence=round(confidence, 2),
        because=tuple(because),
        reference=references_of(names),
        next_step=next_step or _next_step(names, trace),
        explains=explains,
    )


def _next_step(names: list[str], trace: Trace) -> str:
    switches = dict.fromkeys(CAUSES[name].local for name in names if CAUSES[name].local)
    if names == ["unknown"]:
        switches = dict.fromkeys(_features_to_switch_off(trace)[:1])
    if trace.run.engine != LOCAL or not switches:
        return "; or ".join(dict.fromkeys(CAUSES[name].for_engine(trace.run.engine) for name in names))
    return " ; ".join(run_again(trace, switch) for switch in switches)


def _features_to_switch_off(trace: Trace) -> list[tuple[str, ...]]:
    facts = run_facts(trace)
    features = (
        (facts.draft, ("--draft", "none")),
        (facts.disagg, ("--no-disagg",)),
        (facts.graph, ("--no-graph",)),
        (bool(trace.requests.cached_tokens.any()), ("--no-prefix-cache",)),
        (facts.overlap, ("--no-overlap",)),
    )
    return [switch for is_on, switch in features if is_on]
