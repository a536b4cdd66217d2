"""A bisection: what was run, and the switches that it names; as text, plain lines, JSON and annotations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from moeinspect.analysis.bisect.bisection import Bisection, Trial, cells_differ
from moeinspect.analysis.findings import Diagnosis, Report
from moeinspect.printable import printable
from moeinspect.report.guide import explain_command
from moeinspect.report.json import report_document
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
    names = "" if bisection.smallest is None else switch_words(bisection, bisection.smallest)
    match bisection.outcome:
        case "clean":
            return (
                f"{bisection.recorded.verdict}: the trace is as target-only, there is nothing to search for"
            )
        case "switches":
            return f"switches: the difference comes with {names}, and with nothing less; {runs}"
        case "target":
            return (
                "target: every switch off and still different, so it is in the target itself: its model, its "
                f"layers or its capture; {runs}"
            )
        case "not-reproduced":
            return f"not-reproduced: the trace differs, and two runs with all of its switches do not; {runs}"
        case "unfinished":
            least = f"the smallest set so far is {names}" if names else "no run differed so far"
            return f"unfinished: no run left after {runs}, {least}"


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
    """The smallest set, its cause, and the verdict last."""
    for name in bisection.smallest or ():
        yield f"smallest {bisection.options[name]}"
    if cause := bisection.cause:
        yield f"cause {cause.cause}: confidence {cause.confidence:.2f}"
        yield from (f"cause {cause.cause}: because {reason}" for reason in cause.because)
        if cause.reference:
            yield f"cause {cause.cause}: seen in {cause.reference}"
        yield f"cause {cause.cause}: read {explain_command(cause.cause)}"
    if bisection.command:
        yield f"show {bisection.command}"
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
    shown = bisection.shown_by
    recorded = report_document(bisection.recorded)
    return {
        "schema": SCHEMA,
        "command": "bisect",
        "inputs": recorded["inputs"][:1],
        "outcome": bisection.outcome,
        "switches": dict(bisection.options),
        "recorded": {"switches": list(bisection.options), **_figures(bisection.recorded)},
        "runs": [_run(trial) for trial in bisection.trials],
        "smallest": None if bisection.smallest is None else list(bisection.smallest),
        "diagnoses": report_document(shown.report)["diagnoses"] if shown else recorded["diagnoses"],
        "show": bisection.command,
        "notes": list(bisection.notes),
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
