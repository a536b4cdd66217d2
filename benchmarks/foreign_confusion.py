"""Which cause each fault gets where the trace tells less: a table of all faults as engines' answers.

    python benchmarks/foreign_confusion.py [--faults NAME ...] [--models M ...] [--requests N] [--json FILE]

Each fault is captured here, and its rows are then made foreign (`foreign_answers`): as SGLang's answers with
the server's arguments and `meta_info`, as vLLM's with the engine's arguments, without any switch, and without
a baseline, too. Prints for each of these degrees in how many runs the fault is found, in which its own name
stands first (alone, or among the names of one cause) and among the first three, and the first causes.
With --requests only some of the requests are looked at, drawn and in another order. Exit 1 if a run without a
fault is not clean.

A fault whose rows the engine documents (`prefill-only-short`) is told in a note; one that only weight
versions show (`retract-reroute`) has no name where no answer tells of them.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from foreign_answers import chosen, foreign

from moeinspect import cli
from moeinspect.analysis.check import check_report
from moeinspect.analysis.compare import diff_report
from moeinspect.analysis.findings import Report
from moeinspect.runtime.faults import FAULTS
from moeinspect.trace.reader import read_trace
from moeinspect.trace.schema import Trace

DEGREES = {
    "sglang": ("sglang", True, True),
    "vllm": ("vllm", True, True),
    "bare": ("sglang", False, True),
    "alone": ("sglang", False, False),
}
"""Engine, whether its switches are told, and whether there is a baseline."""


@dataclass
class Outcome:
    """What was said of one run at one degree; `rank` of the fault's name among the causes, 0: none."""

    fault: str
    model: str
    degree: str
    verdict: str
    rank: int
    causes: list[str]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", nargs="*", default=[*FAULTS, ""], help="an empty name: a healthy run")
    parser.add_argument("--models", nargs="+", default=["builtin:tiny", "builtin:random"])
    parser.add_argument("--requests", type=int, help="look at so many requests only")
    parser.add_argument("--json", type=Path, help="write the outcomes there")
    options = parser.parse_args()
    outcomes = []
    for fault in options.faults:
        needed = FAULTS[fault].needs.get("model") if fault else None
        for model in [needed] if needed else options.models:
            outcomes += list(_shown(_outcomes(fault, model, options.requests)))
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in outcomes], indent=1))
    _print_table(outcomes)
    return int(any(one.verdict != "clean" for one in outcomes if not one.fault))


def _outcomes(fault: str, model: str, requests: int | None) -> Iterator[Outcome]:
    trace, baseline = _captured(fault, model)
    if requests is not None:
        trace, baseline = _drawn(trace, baseline, requests)
    for degree, (engine, switches, compared) in DEGREES.items():
        made = foreign(trace, engine, switches=switches)
        if compared:
            report = diff_report(made, foreign(baseline, engine, switches=switches))
        else:
            report = check_report([made])
        yield _outcome(fault, model, degree, report)


def _outcome(fault: str, model: str, degree: str, report: Report) -> Outcome:
    causes = [one.cause for one in report.diagnoses]
    rank = next((n for n, cause in enumerate(causes, 1) if fault in cause.split("|")), 0)
    return Outcome(fault, model, degree, report.verdict, rank, causes)


def _captured(fault: str, model: str) -> tuple[Trace, Trace]:
    """The run with the fault, and its target-only baseline."""
    with tempfile.TemporaryDirectory() as folder:
        trace, baseline = Path(folder) / "trace.h5", Path(folder) / "baseline.h5"
        injected = ["--fault", fault] if fault else []
        silent = io.StringIO()
        with contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent):
            cli.main(["capture", model, *injected, "-o", str(trace), "-q"])
            cli.main(["diff", str(trace), "--keep-baseline", str(baseline), "-q"])
        return read_trace(trace), read_trace(baseline)


def _drawn(trace: Trace, baseline: Trace, count: int) -> tuple[Trace, Trace]:
    """So many of the requests in another order, and the same ones of the baseline."""
    order = np.random.default_rng(1).permutation(len(trace.requests))[:count].tolist()
    number = {key: i for i, key in enumerate(_keys(baseline))}
    keys = list(_keys(trace))
    return chosen(trace, order), chosen(baseline, [number[keys[i]] for i in order if keys[i] in number])


def _keys(trace: Trace) -> Iterator[tuple[str, int]]:
    return zip(trace.requests.id.tolist(), trace.requests.sample.tolist(), strict=True)


def _shown(outcomes: Iterator[Outcome]) -> Iterator[Outcome]:
    for one in outcomes:
        causes = "; ".join(one.causes[:3]) or "-"
        name = one.fault or "(healthy)"
        print(f"{name:24} {one.model:22} {one.degree:7} {one.verdict:9} {causes}", flush=True)
        yield one


def _print_table(outcomes: list[Outcome]) -> None:
    print(f"\n{'degree':8} runs  found  own name first  among three")
    for degree in DEGREES:
        ran = [one for one in outcomes if one.degree == degree and one.fault]
        found = sum(one.verdict == "findings" for one in ran)
        first, three = sum(one.rank == 1 for one in ran), sum(0 < one.rank <= 3 for one in ran)
        print(f"{degree:8} {len(ran):4}  {found:5}  {first:14}  {three:11}")


if __name__ == "__main__":
    sys.exit(main())
