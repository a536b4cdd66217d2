"""Which cause each transport fault gets, and whether healthy traces get one: a table over many shapes.

    python benchmarks/transport_confusion.py [--faults NAME ...] [--every N] [--seed N] [--minutes N]

Each healthy trace of a toy model (experts, top-k, layers and requests of many sizes) is changed as the fault
does and judged four times: by `diff` against itself, by `diff` against a run whose choices carry noise, by
`check-duplicates` alone, and by both once more as a trace that an importer wrote. Prints, for each variant,
in how many cases it is found, in how many its own name stands first (alone or among the names of one cause)
and among the first three; then the false alarms of the healthy traces. Exit 1 if one of those is not clean.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from analysis.toymodel import ToyModel, ToyStyle
from analysis.tracefactory import make_facts, make_record, make_trace

from moeinspect.analysis.check import check_report
from moeinspect.analysis.compare.diff import diff_report
from moeinspect.analysis.findings import Report
from moeinspect.trace.schema import Trace
from moeinspect.trace.transport import TRANSPORT_FAULTS, NoEffectError, joins
from moeinspect.trace.transport import filler as fillers
from moeinspect.trace.transport.imported import imported
from moeinspect.trace.transport.layers import aliased_prediction_layers

Change = Callable[[Trace, np.random.Generator], Trace]

VARIANTS: dict[str, dict[str, Change]] = {
    "double-concat": {
        "two answers": partial(joins.joined_twice, parts=2),
        "three answers": partial(joins.joined_twice, parts=3),
        "cut to the tokens": partial(joins.joined_twice, parts=2, cut=True),
    },
    "partial-sentinel": {part: partial(fillers.partly_absent, part=part) for part in fillers.PARTS},
    "filler-as-real": {
        f"{filler}, {place}": partial(fillers.filled, filler=filler, place=place, rows=10)
        for filler, place in itertools.product(fillers.FILLERS, fillers.PLACES)
        if (filler, place) != ("copied", "request")
    }
    | {
        f"{filler}, {place}, 2 rows": partial(fillers.filled, filler=filler, place=place, rows=2)
        for filler, place in itertools.product(fillers.FILLERS, fillers.PLACES)
        if place != "request"
    },
    "missing-request": {
        absence: partial(fillers.without_payload, absence=absence) for absence in fillers.ABSENCES
    },
    "turn-gap": {
        f"{gap}, {turns} turns": partial(joins.gaps_between_turns, gap=gap, turns=turns)
        for gap, turns in itertools.product(joins.GAPS, (2, 4))
    },
    "mtp-alias": {
        "one layer": lambda trace, rng: aliased_prediction_layers(trace),
        "two layers": lambda trace, rng: aliased_prediction_layers(trace, depth=2),
        "one layer added": lambda trace, rng: aliased_prediction_layers(trace, added=True),
    },
}
"""Forms of a fault by what upstream did; a fault that is not here names its own."""

NOT_IN_ONE_TRACE = re.compile(
    "row-shift|replay-noop|cp-slice|double-concat cut|turn-gap missing"
    "|filler-as-real (arange|running|copied), (tail|prompt|between), 2 rows"
)
"""What only a comparison can find: right rows at wrong places, rows that are declared missing, and runs of
filler under four rows, which the rules leave alone."""

EXPERTS, TOP_K, LAYERS = (8, 32, 60, 128, 256, 384), (2, 4, 8), (4, 24, 48)
SHAPES = [shape for shape in itertools.product(EXPERTS, TOP_K, LAYERS) if shape[1] * 2 <= shape[0]]

LOCAL_RUN = {
    "overlap": True,
    "disagg": False,
    "draft": "none",
    "graph": False,
    "backend": "torch",
    "host_kv_slots": 0,
    "dp_size": 1,
    "tp_size": 1,
    "pp_size": 1,
    "redundant_experts": 0,
    "fused_shared_expert": False,
}


@dataclass(frozen=True)
class Outcome:
    """What one way of looking said of one changed trace; `rank` is that of the fault's own name, 0: none."""

    fault: str
    variant: str
    way: str
    shape: str
    found: bool
    rank: int
    causes: str


def main() -> int:
    options = _options()
    jobs = [
        (number, seed)
        for seed in range(options.seed, options.seed + options.seeds)
        for number in range(0, len(SHAPES), options.every)
    ]
    if options.minutes:  # what is left out then should not all be of the large shapes
        np.random.default_rng(options.seed).shuffle(jobs)
    until = time.monotonic() + 60 * options.minutes if options.minutes else math.inf
    judge = partial(_judge, faults=options.faults, until=until)
    outcomes: list[Outcome] = []
    if options.workers > 1:
        with ProcessPoolExecutor(options.workers) as pool:
            for found in pool.map(judge, jobs):
                outcomes += found
    else:
        for job in jobs:
            outcomes += judge(job)
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in outcomes], indent=1))
    return _summary(outcomes, misses=options.misses)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", nargs="*", default=list(TRANSPORT_FAULTS))
    parser.add_argument("--every", type=int, default=1, help="only every n-th shape")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds")
    parser.add_argument("--minutes", type=float, help="begin no shape after so long, in mixed order")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--misses", action="store_true", help="list the cases that are not named first")
    parser.add_argument("--json", type=Path, help="write the outcomes there")
    return parser.parse_args()


def _judge(job: tuple[int, int], faults: list[str], until: float = math.inf) -> list[Outcome]:
    """All faults and variants on one shape and seed, and the healthy trace itself; none after `until`."""
    if time.monotonic() > until:
        return []
    number, seed = job
    experts, top_k, layers = SHAPES[number]
    rng = np.random.default_rng([number, seed])
    healthy = healthy_trace(experts, top_k, layers, rng)
    shape = f"E={experts} K={top_k} L={layers} N={len(healthy.requests)} R={len(healthy.rows)} seed={seed}"
    noisy = noisy_copy(healthy, rng)
    outcomes = list(_ways("", "", shape, healthy, healthy, None))
    for fault in faults:
        variants = VARIANTS.get(fault) or TRANSPORT_FAULTS[fault].shapes
        for variant, change in variants.items():
            try:
                changed = change(healthy, rng)
            except NoEffectError:
                continue
            outcomes += _ways(fault, variant, shape, changed, healthy, noisy)
    return outcomes


def _ways(
    fault: str, variant: str, shape: str, changed: Trace, healthy: Trace, noisy: Trace | None
) -> Iterator[Outcome]:
    foreign = imported(changed)
    reports: dict[str, Report] = {
        "diff": diff_report(changed, healthy),
        "diff imported": diff_report(foreign, imported(healthy)),
    }
    if noisy is not None:
        reports["diff noisy"] = diff_report(foreign, imported(noisy))
    if not NOT_IN_ONE_TRACE.match(f"{fault} {variant}"):
        reports |= {"check": check_report([changed]), "check imported": check_report([foreign])}
    for way, report in reports.items():
        causes = [one.cause for one in report.diagnoses]
        ranks = [place for place, cause in enumerate(causes, 1) if fault in cause.split("|")]
        found = report.verdict == "findings"
        yield Outcome(fault, variant, way, shape, found, ranks[0] if ranks else 0, ", ".join(causes[:3]))


def healthy_trace(experts: int, top_k: int, layers: int, rng: np.random.Generator) -> Trace:
    """3 to 40 requests of a toy model: tokens by a Zipf law, loops, prompts with a common beginning."""
    facts = make_facts(layers, experts, top_k)
    style = ToyStyle(
        vocab=int(rng.choice([100, 400, 2000])),
        classes=int(rng.choice([10, 30, 100])),
        class_noise=float(rng.choice([0.1, 0.3, 0.8])),
        context=float(rng.choice([0.0, 0.5, 1.0])),
        skew=float(rng.choice([0.3, 1.0])),
    )
    model = ToyModel(facts, style, int(rng.integers(1 << 30)))
    shared = _words(rng, style, 24)
    records, slot = [], 0
    for number in range(int(rng.choice([3, 8, 20, 40]))):
        tokens = _words(rng, style, int(rng.integers(12, 90)))
        if rng.random() < 0.3:
            tokens = np.concatenate([shared, tokens])
        _, ids = model.decode(tokens[:-1].tolist(), 1)
        prompt = int(rng.integers(2, len(tokens) - 2))
        record = make_record(
            f"r{number}", tokens[:prompt], tokens[prompt:], make_facts(1, 2, 1), first_slot=slot
        )
        slot += len(ids)
        step = (record.step + 100 * number).astype(np.int32)
        records.append(replace(record, expert_ids=ids, step=step))
    return make_trace(records, facts, run={"run_config": LOCAL_RUN})


def noisy_copy(trace: Trace, rng: np.random.Generator) -> Trace:
    """The same run with rounding of another kind: up to a tenth of the cells hold one expert that is new."""
    ids = trace.rows.expert_ids.astype(np.int64)
    turned = rng.random(ids.shape[:2]) < np.linspace(0.01, 0.1, ids.shape[1])
    row, layer = np.nonzero(turned)
    other = rng.integers(0, trace.model.num_experts, len(row))
    is_new = (ids[row, layer] != other[:, None]).all(axis=1)
    ids[row[is_new], layer[is_new], -1] = other[is_new]
    rows = replace(trace.rows, expert_ids=ids.astype(trace.rows.expert_ids.dtype))
    return replace(trace, rows=rows, run=replace(trace.run, deterministic=False), path="noisy.h5")


def _words(rng: np.random.Generator, style: ToyStyle, count: int) -> np.ndarray:
    """Tokens as text has them: few of them often, some again and again, and one that ends turns."""
    tokens = np.minimum(rng.zipf(1.3, count), style.vocab) - 1
    start = int(rng.integers(count))
    if rng.random() < 0.3:  # a loop, as low temperatures give
        tokens[start:] = np.resize(tokens[start : start + 3], count - start)
    return tokens


def _summary(outcomes: list[Outcome], *, misses: bool) -> int:
    ill = [one for one in outcomes if one.fault]
    if misses:
        for one in [one for one in ill if one.rank != 1]:
            named = f"{one.rank} {one.causes or '-'}"
            print(f"{one.fault:16} {one.variant:22} {one.way:14} {one.shape}: {named}")
        print()
    print(f"{'fault':16} {'variant':22} {'way':14} cases  found  first  top 3   first causes")
    groups: dict[tuple[str, str, str], list[Outcome]] = defaultdict(list)
    for one in ill:
        groups[one.fault, one.variant, one.way].append(one)
    for (fault, variant, way), group in groups.items():
        print(f"{fault:16} {variant:22} {way:14} {_counts(group)}   {_common(group)}")
    print(f"\n{'fault':16} {'way':37} cases  found  first  top 3")
    totals: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for one in ill:
        totals[one.fault, one.way].append(one)
    for (fault, way), group in totals.items():
        print(f"{fault:16} {way:37} {_counts(group)}")
    healthy = [one for one in outcomes if not one.fault]
    alarms = [one for one in healthy if one.found]
    for one in alarms:
        print(f"false alarm, {one.way}: {one.shape}: {one.causes}")
    print(f"\nhealthy traces: {len(healthy)} looked at, {len(alarms)} false alarms")
    return min(1, len(alarms))


def _counts(group: list[Outcome]) -> str:
    first, named = sum(one.rank == 1 for one in group), sum(0 < one.rank <= 3 for one in group)
    return f"{len(group):5}  {sum(one.found for one in group):5}  {first:5}  {named:5}"


def _common(group: list[Outcome]) -> str:
    counted = Counter(one.causes.split(", ")[0] or "-" for one in group)
    return ", ".join(f"{cause} ({count})" for cause, count in counted.most_common(4))


if __name__ == "__main__":
    sys.exit(main())
