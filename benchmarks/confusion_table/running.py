"""Runs drawn cases in this process: `capture`, and `diff` with a baseline that a scene shares."""

from __future__ import annotations

import contextlib
import io
import json
import random
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from confusion_table.outcomes import Outcome
from confusion_table.plan import DRAWN, FAULTY, HEALTHY, MODELS, ORACLE, RUNS, Plan
from confusion_table.scenes import Scene, draw_scene
from confusion_table.switches import draw_switches, words
from confusion_table.triggers import TRIGGERS
from moeinspect import cli
from moeinspect.runtime.faults import FAULTS, NAN_LOGITS, OWN_DRAFT, RETRACT_REROUTE
from moeinspect.trace.reader import read_trace
from moeinspect.trace.schema import Trace

_BUILTIN_TRAFFIC = 0.3
"""Share of runs with faults that take the built-in traffic."""

_TRIGGERED = 0.9
"""Share of runs with drawn requests, and with a fault that is seldom met, that get what brings it out."""

_PLAIN = {HEALTHY: 0.04, FAULTY: 0.15}
"""Share of runs that `diff` makes the baseline of, by kind."""


@dataclass(frozen=True, slots=True)
class _Case:
    """One run; `shared`: compared with the scene's baseline, else by `diff TRACE`."""

    key: str
    fault: str
    words: tuple[str, ...]
    shared: bool
    scene: Scene


def run_scene(
    plan: Plan,
    kind: str,
    number: int,
    folder: Path,
    only: Sequence[int] = (),
    begins: Callable[[Outcome], None] = lambda one: None,
) -> Iterator[Outcome]:
    """The outcomes of scene `number` of a kind, whose files go into `folder`; `only` some of its runs.

    `begins` is told of each run before it starts: an outcome that says nothing yet.
    """
    rng = random.Random(f"{plan.seed}/{kind}/{number}")
    faults = _faults_of(plan, number) if kind == FAULTY else ()
    scene = draw_scene(rng, folder, _models_for(plan, faults), small=kind == HEALTHY)
    for index, case in enumerate(_cases(plan, kind, number, scene, faults)):
        if not only or index in only:
            blank = Outcome(
                case.key, case.fault, scene.model, shlex.join(["moeinspect", "capture", *case.words])
            )
            begins(blank)
            yield _run(case, blank)


def _faults_of(plan: Plan, number: int) -> tuple[str, ...]:
    """All faults in turn; those that need a model of their own share a scene, apart from the others."""
    order = list(plan.faults)
    random.Random(plan.seed).shuffle(order)
    groups: dict[str, list[str]] = {}
    for fault in order:
        groups.setdefault(FAULTS[fault].needs.get("model", ""), []).append(fault)
    sizes = [len(group) for group in groups.values()]
    group = random.Random(f"{plan.seed}/{number}").choices(list(groups.values()), sizes)[0]
    return tuple(group[(number * RUNS[FAULTY] + i) % len(group)] for i in range(RUNS[FAULTY]))


def _models_for(plan: Plan, faults: Sequence[str]) -> list[str]:
    """The models on which all of these faults can happen."""
    own = {FAULTS[fault].needs["model"] for fault in faults if "model" in FAULTS[fault].needs}
    if own:
        return [own.pop()]
    folders = [name for name in MODELS if name.startswith(str(ORACLE))]
    lacking = any(
        FAULTS[fault].needs.get("draft") == OWN_DRAFT or fault == RETRACT_REROUTE for fault in faults
    )
    return [name for name in plan.models if not (lacking and name in folders)] or [DRAWN]


def _cases(plan: Plan, kind: str, number: int, scene: Scene, faults: Sequence[str]) -> Iterator[_Case]:
    for index in range(RUNS[kind]):
        rng = random.Random(f"{plan.seed}/{kind}/{number}/{index}")
        fault = faults[index] if faults else ""
        drawn = not fault or rng.random() > _BUILTIN_TRAFFIC
        trigger = TRIGGERS.get(fault) if drawn and rng.random() < _TRIGGERED else None
        own = (
            scene.with_prompts(f"{fault}-{index}", list(trigger.prompts(rng, scene.vocab)))
            if trigger
            else scene
        )
        switches = draw_switches(rng, own, fault, drawn)
        switches |= trigger.switches(rng, switches, own) if trigger else {}
        said = [scene.model, *scene.sampling, *words(switches)]
        said += ["--prompts", str(own.prompts)] if drawn else []
        said += ["--fault", fault] if fault else []
        shared = drawn and not own.plain and fault not in (NAN_LOGITS, RETRACT_REROUTE)
        shared = shared and rng.random() > _PLAIN[kind]
        yield _Case(f"{kind}{number}.{index}", fault, tuple(said), shared, own)


def _run(case: _Case, blank: Outcome) -> Outcome:
    scene = case.scene
    trace, own, start = scene.folder / "trace.h5", scene.folder / "own.h5", time.monotonic()
    capture = ["capture", *case.words, "-o", str(trace), "-f", "-q"]
    baseline = scene.baseline if case.shared else own
    status, _, messages = _command(capture)
    if not status and case.shared and not baseline.exists():
        plain = [scene.model, *scene.sampling, "--prompts", str(scene.prompts), "--target-only", "--margins"]
        status, _, messages = _command(["capture", *plain, "-o", str(baseline), "-q"])
    if status:
        return replace(blank, note=_error(messages))
    compared = [str(baseline)] if case.shared else ["--keep-baseline", str(own), "-f"]
    status, text, messages = _command(["diff", str(trace), *compared, "--format", "json", "-q"])
    if status > 1:
        return replace(blank, note=_error(messages))
    report = json.loads(text)
    return replace(
        blank,
        verdict=report["verdict"],
        causes=tuple(one["cause"] for one in report["diagnoses"]),
        confidences=tuple(round(one["confidence"], 2) for one in report["diagnoses"]),
        rules=tuple(sorted({f["rule"] for f in report["findings"] if f["severity"] != "note"})),
        same=bool(case.fault) and same_rows(read_trace(trace), read_trace(baseline)),
        seconds=round(time.monotonic() - start, 2),
    )


def same_rows(a: Trace, b: Trace) -> bool:
    """Whether two traces have the same requests with the same tokens and, bit for bit, the same rows."""
    if a.rows.expert_ids.shape[1:] != b.rows.expert_ids.shape[1:] or len(a.requests) != len(b.requests):
        return False
    place = {key: number for number, key in enumerate(_keys(b))}
    for number, key in enumerate(_keys(a)):
        if key not in place or not np.array_equal(a.tokens_of(number), b.tokens_of(place[key])):
            return False
        ours, theirs = a.row_range(number), b.row_range(place[key])
        for column in ("expert_ids", "validity"):
            if not np.array_equal(getattr(a.rows, column)[ours], getattr(b.rows, column)[theirs]):
                return False
    return True


def _keys(trace: Trace) -> list[tuple[str, int]]:
    return list(zip(trace.requests.id.tolist(), trace.requests.sample.tolist(), strict=True))


def _command(argv: Sequence[str]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli.main(argv)
    return status, out.getvalue(), err.getvalue()


def _error(messages: str) -> str:
    return next((line for line in messages.splitlines() if "error" in line), messages[-200:]) or "no message"
