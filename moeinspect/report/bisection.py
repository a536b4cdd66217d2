"""A bisection: its runs and the sets of switches that they name; as text, plain lines, JSON, annotations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from moeinspect.analysis.bisect.bisection import Bisection, SmallestSet, Trial, cells_differ
from moeinspect.analysis.findings import Diagnosis, Report
from moeinspect.printable import printable
from moeinspect.report.guide import explain_command
from moeinspect.report.json import diagnosis_document, report_document
from moeinspect.report.words import counted, input_line

SCHEMA = "moeinspect-bisect/1"


def render_bisection(bisection: Bisection, format: str, *, color: bool, width: int | None) -> str:
    """The bisection as text that ends with a newline; `width` None: plain lines, one record a line."""
    if format == "json":
        return json.dumps(_document(bisection), indent=2, allow_nan=False) + "\n"
    if format == "github":
        from moeinspect.report.github import command

        kind = "notice" if bisection.outcome == "clean" else "error"
        return command(kind, "moeinspect bisect", "\n".join(_conclusion(bisection))) + "\n"
    if width is None:
        return "".join(f"{printable(line)}\n" for line in _plain(bisection))
    from moeinspect.report.bisection_text import render_text  # rich starts slowly: only for a terminal

    return render_text(bisection, color=color, width=width)


def switch_words(bisection: Bisection, switches: tuple[str, ...]) -> str:
    """Switches as options of the command line."""
    return " ".join(bisection.options[name] for name in switches) or "no switch"


def top_cause(report: Report) -> Diagnosis | None:
    """The likeliest cause, if there is any."""
    return report.diagnoses[0] if report.diagnoses else None


def verdict_line(bisection: Bisection) -> str:
    """The last line: what came out."""
    runs = counted(len(bisection.trials), "run")
    names = [switch_words(bisection, one.switches) for one in bisection.sets]
    match bisection.outcome:
        case "clean":
            return (
                f"{bisection.recorded.verdict}: the trace is as target-only, there is nothing to search for"
            )
        case "switches":
            first, *others = names
            another = "".join(f", another one with {other}" for other in others)
            only = ", each with nothing less" if others else ", and with nothing less"
            return f"switches: a difference comes with {first}{another}{only}; {_remains(bisection)}; {runs}"
        case "target":
            another = "".join(f"; another difference comes with {other}" for other in names[1:])
            return (
                "target: every switch off and still different, so it is in the target itself: its model, its "
                f"layers or its capture{another}; {runs}"
            )
        case "not-reproduced":
            return f"not-reproduced: the trace differs, and two runs with all of its switches do not; {runs}"
        case "unfinished":
            least = f"the smallest set so far is {names[0]}" if names else "no run differed so far"
            return f"unfinished: no run left after {runs}, {least}"


def _remains(bisection: Bisection) -> str:
    """What is left of the difference once each set lacks a switch."""
    several = len(bisection.sets) > 1
    match bisection.remains:
        case "nothing":
            return f"nothing is left without {'them' if several else 'it'}"
        case "something":
            return f"without {'them' if several else 'it'} something still differs, and no run is left"
        case "untried":
            return "no run is left to see whether anything else differs"


def _plain(bisection: Bisection) -> Iterator[str]:
    for one in bisection.recorded.inputs[:1]:
        yield f"input {one.path}: {input_line(one)}"
    yield f"recorded: {switch_words(bisection, tuple(bisection.options))}: {_outcome(bisection.recorded)}"
    for number, trial in enumerate(bisection.trials, start=1):
        again = ", again" if trial.again else ""
        words = switch_words(bisection, trial.switches)
        yield f"run {number}: {words}{again}: {_outcome(trial.report)}, {trial.seconds:.1f} s"
    yield from _conclusion(bisection)


def _conclusion(bisection: Bisection) -> Iterator[str]:
    """The smallest sets, each with its causes, and the verdict last."""
    for one in bisection.sets:
        yield f"smallest {switch_words(bisection, one.switches)}"
        for cause in one.causes:
            yield f"cause {cause.cause}: confidence {cause.confidence:.2f}"
            yield from (f"cause {cause.cause}: because {reason}" for reason in cause.because)
            if cause.reference:
                yield f"cause {cause.cause}: seen in {cause.reference}"
            yield f"cause {cause.cause}: read {explain_command(cause.cause)}"
        if one.command:
            yield f"show {one.command}"
    yield from (f"note {note}" for note in bisection.notes)
    yield verdict_line(bisection)


def _outcome(report: Report) -> str:
    parts = [
        report.verdict,
        f"{counted(report.counts['rows_compared'], 'row')} compared",
        f"{counted(cells_differ(report), 'cell')} differ",
    ]
    cause = top_cause(report)
    return ", ".join([*parts, *([cause.cause] if cause else [])])


def _document(bisection: Bisection) -> dict[str, Any]:
    recorded = report_document(bisection.recorded)
    sets = [_smallest(one) for one in bisection.sets]
    first = sets[0] if sets else {"switches": None, "diagnoses": recorded["diagnoses"], "show": ""}
    return {
        "schema": SCHEMA,
        "command": "bisect",
        "inputs": recorded["inputs"][:1],
        "outcome": bisection.outcome,
        "switches": dict(bisection.options),
        "recorded": {"switches": list(bisection.options), **_figures(bisection.recorded)},
        "runs": [_run(trial) for trial in bisection.trials],
        "smallest": first["switches"],
        "diagnoses": first["diagnoses"],
        "show": first["show"],
        "sets": sets,
        "remains": None if bisection.outcome in ("clean", "target", "not-reproduced") else bisection.remains,
        "notes": list(bisection.notes),
    }


def _smallest(one: SmallestSet) -> dict[str, Any]:
    return {
        "switches": list(one.switches),
        "diagnoses": [diagnosis_document(cause) for cause in one.causes],
        "show": one.command,
    }


def _run(trial: Trial) -> dict[str, Any]:
    return {
        "switches": list(trial.switches),
        "again": trial.again,
        **_figures(trial.report),
        "seconds": round(trial.seconds, 3),
    }


def _figures(report: Report) -> dict[str, Any]:
    cause = top_cause(report)
    return {
        "verdict": report.verdict,
        "rows_compared": report.counts["rows_compared"],
        "cells_compared": report.counts["cells_compared"],
        "cells_differ": cells_differ(report),
        "cause": cause.cause if cause else None,
    }
