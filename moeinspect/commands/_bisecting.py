"""From a trace to the smallest sets of switches that bring its differences."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path

from moeinspect.analysis.bisect.bisection import Bisection, SmallestSet, shares_a_name
from moeinspect.analysis.bisect.causes import not_shown, same_difference, settled_by
from moeinspect.analysis.bisect.ordering import likeliest_first
from moeinspect.analysis.bisect.runs import Runs, Switches
from moeinspect.analysis.bisect.search import Found, Outcome, Remains, Search
from moeinspect.analysis.diagnose.rerun import option_list
from moeinspect.analysis.findings import Diagnosis, Report
from moeinspect.analysis.requests import LOCAL
from moeinspect.commands._bisect_runs import Baselines, Runner
from moeinspect.commands._next import bisected_name, diff_command
from moeinspect.commands._recorded import recorded_run
from moeinspect.commands._requests_again import requests_again
from moeinspect.console import Console
from moeinspect.errors import InputError
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.faults import FAULTS
from moeinspect.runtime.option_words import option_words
from moeinspect.runtime.switches import switches_on, with_only
from moeinspect.runtime.traffic import TRAFFICS
from moeinspect.trace.schema import Trace

PROMPTS = "PROMPTS.jsonl"
"""Stands for prompts that came from no file that the trace names."""


def bisect_trace(trace: Trace, max_runs: int, console: Console) -> Bisection:
    """Compares `trace` with target-only and, if they differ, searches for the switches that bring it.

    Raises:
        InputError: another engine's trace, a model that changed, or nothing to compare or to run again.
        EngineError: a run failed.
    """
    if trace.run.engine != LOCAL:
        raise InputError(
            f"{trace.path}: recorded by {trace.run.engine}, so bisect cannot run it again",
            "make a reference with `moeinspect capture MODEL --target-only --prompts FILE -o reference.h5`, "
            f"then `{diff_command(Path(trace.path), 'reference.h5')}`",
        )
    config = recorded_run(trace)
    baselines = Baselines(console)
    recorded = baselines.compare(trace)
    order = likeliest_first(switches_on(config), recorded.diagnoses)
    options = {name: option_words(name, getattr(config, name)) for name in order}
    if not recorded.differs:
        return Bisection(recorded, options, (), "clean")
    requests = requests_again(trace, config, console)
    runner = Runner(trace, config, requests, order, baselines, console)

    def settled(switches: Switches) -> Switches:
        return frozenset(switches_on(with_only(config, switches)))

    runs = Runs(runner.report, settled, max_runs=max_runs)
    named = _search(recorded, order, runs)
    notes = list(named.notes)
    sets: list[SmallestSet] = []
    for switches, causes in named.sets.items():
        builtin = switches in runner.with_builtin_requests
        prompts = None if builtin else str(trace.run.run_config.get("prompts") or PROMPTS)
        if prompts == PROMPTS:
            notes.append(f"{PROMPTS} stands for the prompts that the trace was recorded with")
        names = tuple(name for name in order if name in switches)
        command = _command(with_only(config, switches), trace, prompts, len(sets) + 1)
        sets.append(SmallestSet(names, causes, command))
    return Bisection(
        recorded,
        options,
        tuple(runner.trials),
        named.outcome,
        tuple(sets),
        named.remains,
        tuple(dict.fromkeys(notes)),
    )


@dataclass(slots=True)
class _Named:
    """What the searches named: sets with their causes, likeliest first."""

    outcome: Outcome
    sets: dict[Switches, tuple[Diagnosis, ...]]
    remains: Remains
    notes: list[str] = field(default_factory=list)


def _search(recorded: Report, order: Sequence[str], runs: Runs[Report]) -> _Named:
    """Searches for all sets that differ, then for those of causes that none of them shows."""
    found = Search(order, runs, lambda report: report.differs).find()
    named = _Named(found.outcome, {one: _causes(runs, one) for one in found.sets}, found.remains)
    if not named.sets:
        return named
    for cause in not_shown(recorded, chain.from_iterable(named.sets.values())):
        more = _of_cause(cause, runs, order)
        if more.outcome == "not-reproduced":
            named.notes.append(f"the trace looks like {cause.cause}, too, and no run did")
        elif more.outcome == "unfinished" and named.remains == "nothing":
            named.remains = "untried"
        elif more.outcome != "unfinished":
            named.sets |= {
                one: _causes(runs, one, cause) for one in more.sets if _is_new(one, named.sets, runs)
            }
    return named


def _is_new(switches: Switches, known: Iterable[Switches], runs: Runs[Report]) -> bool:
    """Whether a set brings something that no known one does."""
    shown = _shown_by(switches, runs)
    return not any(switches == one or same_difference(shown, _shown_by(one, runs)) for one in known)


def _shown_by(switches: Switches, runs: Runs[Report]) -> Report:
    """The first run of a set that differed."""
    return next(report for report in runs.seen[switches] if report.differs)


def _of_cause(cause: Diagnosis, runs: Runs[Report], order: Sequence[str]) -> Found:
    """Searches for the switches under which `cause` is named, whatever else differs."""

    def names_it(report: Report) -> bool:
        return report.differs and shares_a_name(cause, report.diagnoses)

    return Search(likeliest_first(order, [cause]), runs, names_it).find(only_first=True)


def _causes(runs: Runs[Report], switches: Switches, first: Diagnosis | None = None) -> tuple[Diagnosis, ...]:
    """The causes of the first run of a set that differed, those that may be `first` in front."""
    causes = tuple(settled_by(switches, one) for one in _shown_by(switches, runs).diagnoses)
    if first is None:
        return causes
    return tuple(sorted(causes, key=lambda one: not shares_a_name(first, [one])))


def _command(config: RunConfig, trace: Trace, prompts: str | None, number: int) -> str:
    """Runs with these switches, the set of this `number`, again and looks at the outcome.

    Options that a fault or a traffic would turn on are said, too, so that they stay as they are.
    """
    touched = {name for fault in config.faults if fault in FAULTS for name in FAULTS[fault].needs}
    touched |= {name for traffic in config.traffic for name in TRAFFICS[traffic].options}
    output = bisected_name(Path(trace.path), number)
    words = [
        *("moeinspect", "capture", config.model),
        *([] if prompts is None else ["--prompts", prompts]),
        *option_list(asdict(config), without={"traffic"} if prompts else set(), always=touched),
        *(word for fault in config.faults for word in ("--fault", fault)),
        *("-o", str(output)),
    ]
    return f"{shlex.join(words)} && {diff_command(output)}"
