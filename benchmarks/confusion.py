"""Which cause each fault gets, and whether healthy runs get one: a table of all faults and many switches.

    python benchmarks/confusion.py [--models MODEL ...] [--faults NAME ...] [--healthy] [--quick]

Each run is `capture` and then `diff` against the target-only baseline that it makes, in this process. Prints,
for each fault, the share of runs in which it is found and in which its own name stands first (alone, or among
the names of one cause), and for healthy runs the share of false alarms. Exit 1 if a fault is missed or a
healthy run is not clean.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from moeinspect import cli
from moeinspect.runtime.faults import FAULTS

VARIED = (
    "",
    "--chunked-prefill-size 16",
    "--max-running-requests 3 --seed 3 --temperature 0.9",
    "--max-running-requests 2 --chunked-prefill-size 24 --max-new-tokens 12",
)
"""Switches that every fault is run with, beside those that it turns on by itself."""

DRAFT = "--draft OWN"
HEALTHY = (
    *VARIED,
    "--no-overlap",
    "--disagg",
    "--disagg --no-overlap --chunked-prefill-size 16",
    "--num-kv-slots 128",
    "--no-prefix-cache",
    "--prefix-cache --num-kv-slots 160 --host-kv-slots 256",
    "--prefix-cache --disagg",
    f"{DRAFT}",
    f"{DRAFT} --no-overlap --num-kv-slots 160",
    f"{DRAFT} --disagg --chunked-prefill-size 16",
    f"{DRAFT} --draft-topk 2",
    f"{DRAFT} --draft-topk 4 --num-draft-tokens 6 --prefix-cache",
    f"{DRAFT} --adaptive-draft",
    f"{DRAFT} --graph",
    f"{DRAFT} --draft-topk 2 --graph --prefix-cache --max-running-requests 3",
    "--draft ngram",
    "--draft ngram --graph --disagg",
    "--graph",
    "--graph --no-overlap --max-running-requests 3",
    "--graph --disagg --prefix-cache",
    "--backend bypass",
    f"--backend bypass {DRAFT} --graph",
    f"--backend triton {DRAFT}",
    "--dtype bfloat16 --prefix-cache",
    "--dp-size 2",
    f"--dp-size 2 {DRAFT}",
    f"--dp-size 2 {DRAFT} --draft-topk 2 --no-overlap",
    "--dp-size 2 --disagg --prefix-cache",
    "--tp-size 2",
    f"--tp-size 2 {DRAFT} --graph",
    "--pp-size 2",
    f"--pp-size 2 {DRAFT}",
    f"--dp-size 2 --tp-size 2 --pp-size 2 {DRAFT}",
    "--redundant-experts 4",
    f"--redundant-experts 7 --rebalance-interval 3 {DRAFT} --graph",
    "--redundant-experts 4 --rebalance-interval 2 --dp-size 2 --tp-size 2",
)
"""Switches of runs in which nothing is wrong."""

HEALTHY_OF = {
    "builtin:random-shared": ("", "--fused-shared-expert", f"--fused-shared-expert {DRAFT} --dp-size 2"),
    "builtin:random-hash": ("", f"{DRAFT} --pp-size 2", "--disagg --backend bypass"),
}
"""More of them, for models with a shared expert and with hash-routed layers."""


@dataclass
class Outcome:
    """What `diff` said of one run: `first` and `rank` of the fault's own name among the causes."""

    fault: str
    model: str
    switches: str
    verdict: str
    first: str = ""
    rank: int = 0
    confidence: float = 0.0
    rules: str = ""
    note: str = ""

    @property
    def is_found(self) -> bool:
        """Whether the report says that something is wrong; a healthy run may not differ at all."""
        return self.verdict == "findings" if self.fault else self.verdict != "clean"


def main() -> int:
    options = _options()
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        for model, fault, switches in _runs(options):
            outcomes.append(_show(_run(Path(folder), model, fault, switches)))
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in outcomes], indent=1))
    return _summary(outcomes)


def _runs(options: argparse.Namespace) -> Iterator[tuple[str, str, str]]:
    """Model, fault and switches of each run; a fault that needs a model of its own runs on that one."""
    for fault in options.faults:
        needed = FAULTS[fault].needs.get("model")
        for model in [needed] if needed else options.models:
            yield from ((model, fault, one) for one in (VARIED[:1] if options.quick else VARIED))
    if options.healthy:
        yield from ((model, "", one) for model in options.models for one in HEALTHY)
        yield from ((model, "", one) for model, switches in HEALTHY_OF.items() for one in switches)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["builtin:tiny", "builtin:random"])
    parser.add_argument("--faults", nargs="*", default=list(FAULTS))
    parser.add_argument("--healthy", action="store_true", help="run the healthy switches, too")
    parser.add_argument("--quick", action="store_true", help="each fault with its default switches only")
    parser.add_argument("--json", type=Path, help="write the outcomes there")
    return parser.parse_args()


def _run(folder: Path, model: str, fault: str, switches: str) -> Outcome:
    trace = folder / "trace.h5"
    own_draft = model + "-draft"
    words = [own_draft if word == "OWN" else word for word in switches.split()]
    injected = ["--fault", fault] if fault else []
    status, _, messages = _command(["capture", model, *words, *injected, "-o", str(trace), "-f", "-q"])
    if status:
        return Outcome(fault, model, switches, "not run", note=_error(messages))
    status, text, messages = _command(["diff", str(trace), "--format", "json", "-q"])
    if status > 1:
        return Outcome(fault, model, switches, "not compared", note=_error(messages))
    report = json.loads(text)
    causes = [one["cause"] for one in report["diagnoses"]]
    ranks = [number for number, cause in enumerate(causes, 1) if fault in cause.split("|")]
    return Outcome(
        fault,
        model,
        switches,
        report["verdict"],
        first=causes[0] if causes else "",
        rank=ranks[0] if ranks else 0,
        confidence=report["diagnoses"][0]["confidence"] if causes else 0.0,
        rules=",".join(sorted({f["rule"] for f in report["findings"] if f["severity"] != "note"})),
    )


def _command(argv: Sequence[str]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli.main(argv)
    return status, out.getvalue(), err.getvalue()


def _error(messages: str) -> str:
    return next((line for line in messages.splitlines() if "error" in line), messages[-200:])


def _show(one: Outcome) -> Outcome:
    what = one.note or f"{one.rank or '-'} {one.first or '-'} ({one.confidence}) {one.rules}"
    name = one.fault or "(healthy)"
    print(f"{name:22} {one.model:15} {one.switches or '-':50} {one.verdict:9} {what}", flush=True)
    return one


def _summary(outcomes: Sequence[Outcome]) -> int:
    print(f"\n{'fault':22} runs  found  own name first  named  first causes")
    missed = 0
    for fault in dict.fromkeys(one.fault for one in outcomes):
        ran = [one for one in outcomes if one.fault == fault and not one.note]
        found = sum(one.is_found for one in ran)
        first, named = sum(one.rank == 1 for one in ran), sum(one.rank > 0 for one in ran)
        causes = ", ".join(dict.fromkeys(one.first for one in ran if one.first))
        print(f"{fault or '(healthy)':22} {len(ran):4}  {found:5}  {first:14}  {named:5}  {causes}")
        missed += found if not fault else len(ran) - found
    return min(1, missed)


if __name__ == "__main__":
    sys.exit(main())
