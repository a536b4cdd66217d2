"""The table, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from confusion_table.outcomes import AMONG, Outcome, Tally, failed_goals, tally

_HEAD = f"{'fault':25} runs inert found missed  first alone top{AMONG}  first causes"


def table(outcomes: Sequence[Outcome], fewest_healthy: int = 0) -> Iterator[str]:
    """Lines: one for each fault with the causes that stood first, the sums, and every run that went wrong."""
    faulty = [one for one in outcomes if one.fault]
    if faulty:
        yield _HEAD
        for fault in sorted({one.fault for one in faulty}):
            yield _line(fault, tally([one for one in faulty if one.fault == fault]), causes=True)
        yield _line("all faults", total := tally(faulty), causes=False)
        found = max(1, total.states["found"])
        yield (
            f"found {_share(total.states['found'], total.effective)}, right cause first "
            f"{_share(total.first, found)}, alone {_share(total.alone, found)}, among the first {AMONG} "
            f"{_share(total.among, found)}; inert: {total.states['inert']} of {total.runs} runs"
        )
    if healthy := [one for one in outcomes if not one.fault]:
        total = tally(healthy)
        yield f"healthy runs: {total.states['clean']} clean, {total.states['alarm']} false alarms"
    yield from _wrong_runs(outcomes)
    for failed in failed_goals(outcomes, fewest_healthy):
        yield f"GOAL MISSED: {failed}"


def _line(name: str, one: Tally, *, causes: bool) -> str:
    named = ", ".join(f"{cause} {count}" for cause, count in one.first_causes.most_common()) if causes else ""
    return (
        f"{name:25} {one.runs:4} {one.states['inert']:5} {one.states['found']:5} {one.states['missed']:6} "
        f"{one.first:6} {one.alone:5} {one.among:4}  {named}"
    ).rstrip()


def _share(part: int, whole: int) -> str:
    return f"{part}/{whole} ({100 * part / max(1, whole):.1f} %)"


def _wrong_runs(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Each with its key for --repeat."""
    kinds = (
        ("false alarm", lambda one: one.state == "alarm"),
        ("missed", lambda one: one.state == "missed"),
        ("other cause first", lambda one: one.state == "found" and one.rank != 1),
        ("not run", lambda one: one.state == "not run"),
    )
    for kind, is_kind in kinds:
        for one in filter(is_kind, outcomes):
            causes = ", ".join(f"{c} {p}" for c, p in zip(one.causes, one.confidences, strict=True))
            yield f"{kind}: {one.key}  {one.fault or '(healthy)'}  {one.command}"
            yield f"    {one.note or causes or one.verdict}  [{', '.join(one.rules)}]"
