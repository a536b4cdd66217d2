"""Which cause each fault gets, and whether healthy runs get one: a table over drawn runs.

    python benchmarks/confusion.py [--faults NAME ...] [--healthy] [--jobs N] [--minutes M | --runs N]
    python benchmarks/confusion.py --seed N --repeat f12.3 h4.0 [--keep FOLDER]

Draws scenes: an embedded model, one of the tests or a checkpoint folder of drawn sizes, prompts that nobody
has seen before, and sampling. Under each, many runs with drawn switches, each `capture` and then `diff`
against a target-only baseline that the scene's runs share; a part of them against the baseline that `diff`
makes, and a part with the built-in traffic that a fault brings along. With --healthy alone nothing is wrong
in any run; with --faults alone all have a fault; by default, or with both, they take turns.

Prints, for each fault, in how many runs it changed nothing (inert: the trace equals its baseline bit for
bit), was found, had its own name first (alone, too) and among the first three causes, and which causes stood
first; for healthy runs the false alarms; and every run that went wrong, with the key that repeats it. Exit 1
if a fault is missed, its cause is not first in 95 % and among the first three in all runs, a healthy run is
not clean, or a run gives no report.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one thread a process, before torch is imported

from confusion_table.outcomes import Outcome, failed_goals
from confusion_table.pool import Budget, run_scenes
from confusion_table.printing import table
from confusion_table.running import FAULTY, HEALTHY, RUNS, Plan, run_scene
from confusion_table.scenes import MODELS

from moeinspect.runtime.faults import FAULTS

_KEY = re.compile(rf"([{FAULTY}{HEALTHY}])(\d+)\.(\d+)")


def main() -> int:
    options = _options()
    plan = Plan(options.seed, tuple(options.faults or FAULTS), tuple(options.models))
    if options.repeat:
        outcomes = list(_again(plan, options.repeat, options.keep))
        print(*(json.dumps(asdict(one), indent=1) for one in outcomes), sep="\n")
    else:
        outcomes = list(_shown(_drawn(plan, options)))
        if options.json:
            options.json.write_text(json.dumps([asdict(one) for one in outcomes], indent=1))
    print(*table(outcomes, options.fewest_healthy), sep="\n")
    return 1 if failed_goals(outcomes, options.fewest_healthy) else 0


def _drawn(plan: Plan, options: argparse.Namespace) -> Iterator[Outcome]:
    kinds = [FAULTY] if options.faults is not None else []
    kinds += [HEALTHY] if options.healthy else []
    kinds = kinds or [FAULTY, HEALTHY]
    minutes = options.minutes if options.minutes or options.runs else 2.0
    a_round = sum(RUNS[kind] for kind in kinds) / len(kinds)
    scenes = -(-options.runs // int(a_round)) if options.runs else sys.maxsize
    deadline = time.monotonic() + (60 * minutes if minutes else 1e6)
    yield from run_scenes(plan, kinds, options.jobs, Budget(deadline, scenes))


def _again(plan: Plan, keys: Sequence[str], keep: Path | None) -> Iterator[Outcome]:
    """The runs of these keys, in this process; their files stay in `keep`, a folder for each."""
    with TemporaryDirectory(prefix="confusion-") as top:
        for key in keys:
            match = _KEY.fullmatch(key)
            if match is None:
                sys.exit(f"--repeat {key}: no key of a run, such as f12.3")
            kind, scene, index = match[1], int(match[2]), int(match[3])
            yield from run_scene(plan, kind, scene, (keep or Path(top)) / key, only=[index])


def _shown(outcomes: Iterator[Outcome]) -> Iterator[Outcome]:
    """Passes outcomes on and says on stderr how far it is."""
    start, last, counts = time.monotonic(), 0.0, {"runs": 0, "alarm": 0, "missed": 0, "not run": 0}
    ending = "\r" if sys.stderr.isatty() else "\n"
    for one in outcomes:
        counts["runs"] += 1
        counts |= {one.state: counts[one.state] + 1} if one.state in counts else {}
        now = time.monotonic()
        if now - last > (0.5 if ending == "\r" else 15):
            last = now
            told = ", ".join(f"{count} {name}" for name, count in counts.items())
            print(f"{told}, {now - start:.0f} s   ", end=ending, file=sys.stderr, flush=True)
        yield one


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", nargs="*", metavar="NAME", choices=list(FAULTS), help="these, or all")
    parser.add_argument("--healthy", action="store_true", help="runs in which nothing is wrong")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS), metavar="MODEL")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--minutes", type=float, default=0.0, help="start no run after that (2)")
    parser.add_argument("--runs", type=int, default=0, help="about so many runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fewest-healthy", type=int, default=0, help="a goal: so many clean healthy runs")
    parser.add_argument("--json", type=Path, help="write the outcomes there")
    parser.add_argument("--repeat", nargs="+", metavar="KEY", help="run these again, with the same seed")
    parser.add_argument("--keep", type=Path, help="with --repeat: keep prompts, checkpoints and traces there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
