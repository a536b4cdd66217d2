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

It ends within --minutes and --grace seconds more, whatever the runs do: a run that takes longer is killed
with all processes that it started, and counts as one without a report. --json is written as it goes; a
process that is told to stop (SIGINT, SIGTERM) still prints the table of what is done.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one thread a process, before torch is imported

from confusion_table.outcomes import Outcome, failed_goals
from confusion_table.plan import FAULTY, HEALTHY, MODELS, RUNS, Plan
from confusion_table.pool import Budget, Pool
from confusion_table.printing import table

from moeinspect.runtime.faults import FAULTS

_STARTED = time.time()
_KEY = re.compile(rf"([{FAULTY}{HEALTHY}])(\d+)\.(\d+)")
_WRITTEN_EVERY_S = 15.0


def main() -> int:
    options = _options()
    plan = Plan(options.seed, tuple(options.faults or FAULTS), tuple(options.models))
    outcomes: list[Outcome] = []
    if options.repeat:
        outcomes.extend(_again(plan, options.repeat, options.keep))
        print(*(json.dumps(asdict(one), indent=1) for one in outcomes), sep="\n")
    else:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            _draw(plan, options, outcomes)
        except KeyboardInterrupt:
            print("stopped: the table is of what is done", file=sys.stderr, flush=True)
        _write(outcomes, options.json)
    outcomes.sort(key=_order)
    print(*table(outcomes, options.fewest_healthy), sep="\n", flush=True)
    return 1 if failed_goals(outcomes, options.fewest_healthy) else 0


def _draw(plan: Plan, options: argparse.Namespace, outcomes: list[Outcome]) -> None:
    """Fills `outcomes`, tells on stderr how far it is, and writes them down now and then."""
    written = time.monotonic()
    told = _Progress(sys.stderr.isatty())
    for one in _drawn(plan, options):
        outcomes.append(one)
        told.of(one)
        if time.monotonic() - written > _WRITTEN_EVERY_S:
            written = time.monotonic()
            _write(outcomes, options.json)


def _write(outcomes: Sequence[Outcome], path: Path | None) -> None:
    """All of the file or nothing of it."""
    if path is not None:
        part = path.with_name(path.name + ".part")
        part.write_text(json.dumps([asdict(one) for one in sorted(outcomes, key=_order)], indent=1))
        part.replace(path)


def _order(one: Outcome) -> tuple[str, int, int]:
    match = _KEY.fullmatch(one.key)
    return (match[1], int(match[2]), int(match[3])) if match else ("", 0, 0)


def _drawn(plan: Plan, options: argparse.Namespace) -> Iterator[Outcome]:
    kinds = [FAULTY] if options.faults is not None else []
    kinds += [HEALTHY] if options.healthy else []
    kinds = kinds or [FAULTY, HEALTHY]
    minutes = options.minutes if options.minutes or options.runs else 2.0
    a_round = sum(RUNS[kind] for kind in kinds) / len(kinds)
    scenes = -(-options.runs // int(a_round)) if options.runs else sys.maxsize
    deadline = _STARTED + (60 * minutes if minutes else 1e6)
    return Pool(plan, kinds, options.jobs, Budget(deadline, scenes, options.grace)).outcomes()


def _again(plan: Plan, keys: Sequence[str], keep: Path | None) -> Iterator[Outcome]:
    """The runs of these keys, in this process; their files stay in `keep`, a folder for each."""
    from confusion_table.running import run_scene

    with TemporaryDirectory(prefix="confusion-") as top:
        for key in keys:
            match = _KEY.fullmatch(key)
            if match is None:
                sys.exit(f"--repeat {key}: no key of a run, such as f12.3")
            kind, scene, index = match[1], int(match[2]), int(match[3])
            yield from run_scene(plan, kind, scene, (keep or Path(top)) / key, only=[index])


class _Progress:
    """Counts outcomes and says on stderr how far it is."""

    def __init__(self, terminal: bool) -> None:
        self._ending, self._every_s = ("\r", 0.5) if terminal else ("\n", 10.0)
        self._last = 0.0
        self._counts = {"runs": 0, "alarm": 0, "missed": 0, "not run": 0}

    def of(self, one: Outcome) -> None:
        """Takes in one outcome."""
        counts = self._counts
        counts["runs"] += 1
        counts |= {one.state: counts[one.state] + 1} if one.state in counts else {}
        now = time.time()
        if now - self._last > self._every_s:
            self._last, seconds = now, now - _STARTED
            told = ", ".join(f"{count} {name}" for name, count in counts.items())
            rate = f"{counts['runs'] / seconds:.1f} runs a second"
            print(f"{told}, {seconds:.0f} s, {rate}   ", end=self._ending, file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", nargs="*", metavar="NAME", choices=list(FAULTS), help="these, or all")
    parser.add_argument("--healthy", action="store_true", help="runs in which nothing is wrong")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS), metavar="MODEL")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--minutes", type=float, default=0.0, help="start no run after that (2)")
    parser.add_argument("--grace", type=float, default=20.0, help="seconds until runs are killed after that")
    parser.add_argument("--runs", type=int, default=0, help="about so many runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fewest-healthy", type=int, default=0, help="a goal: so many clean healthy runs")
    parser.add_argument("--json", type=Path, help="write the outcomes there")
    parser.add_argument("--repeat", nargs="+", metavar="KEY", help="run these again, with the same seed")
    parser.add_argument("--keep", type=Path, help="with --repeat: keep prompts, checkpoints and traces there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
