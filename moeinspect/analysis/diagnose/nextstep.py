"""A diagnosis with its references, and the command that runs again with one switch turned."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from moeinspect.analysis.diagnose.catalogue import CAUSES
from moeinspect.analysis.diagnose.facts import run_facts
from moeinspect.analysis.findings import Diagnosis
from moeinspect.analysis.requests import LOCAL
from moeinspect.trace.schema import Trace

_FLAGS: tuple[tuple[str, object, tuple[str, ...]], ...] = (
    ("disagg", True, ("--disagg",)),
    ("overlap", False, ("--no-overlap",)),
    ("prefix_cache", False, ("--no-prefix-cache",)),
    ("graph", True, ("--graph",)),
    ("adaptive_draft", True, ("--adaptive-draft",)),
    ("weights", True, ("--weights",)),
    ("ignore_eos", True, ("--ignore-eos",)),
    ("deterministic", False, ("--no-deterministic",)),
)
_VALUES: tuple[tuple[str, object], ...] = (
    ("draft", None),
    ("num_draft_tokens", 4),
    ("draft_topk", 1),
    ("host_kv_slots", 0),
    ("chunked_prefill_size", 64),
    ("max_running_requests", 16),
    ("max_new_tokens", 32),
    ("temperature", 0.0),
    ("seed", 0),
    ("dtype", "float32"),
    ("backend", "torch"),
)


def diagnosis(
    cause: str, confidence: float, because: Sequence[str], trace: Trace, *, next_step: str | None = None
) -> Diagnosis:
    """A diagnosis with the references and the next step of its cause (names joined by `|`)."""
    names = cause.split("|")
    references = "; ".join(dict.fromkeys(CAUSES[name].reference for name in names if CAUSES[name].reference))
    return Diagnosis(
        cause=cause,
        confidence=round(confidence, 2),
        because=tuple(because),
        reference=references,
        next_step=next_step or _next_step(names, trace),
    )


def _next_step(names: list[str], trace: Trace) -> str:
    switches = dict.fromkeys(CAUSES[name].local for name in names if CAUSES[name].local)
    if names == ["unknown"]:
        switches = dict.fromkeys(_features_to_switch_off(trace)[:1])
    if trace.run.engine != LOCAL or not switches:
        return "; or ".join(dict.fromkeys(CAUSES[name].engine for name in names))
    return " ; ".join(_run_again(trace, switch) for switch in switches)


def _features_to_switch_off(trace: Trace) -> list[tuple[str, ...]]:
    facts = run_facts(trace)
    features = (
        (facts.draft, ("--draft", "none")),
        (facts.disagg, ("--no-disagg",)),
        (facts.graph, ("--no-graph",)),
        (bool(trace.requests.cached_tokens.any()), ("--no-prefix-cache",)),
        (facts.overlap, ("--no-overlap",)),
    )
    return [switch for is_on, switch in features if is_on]


def _run_again(trace: Trace, switch: tuple[str, ...]) -> str:
    """The commands that repeat the run with one switch turned, and look at the outcome."""
    config = trace.run.run_config
    words = ["moeinspect", "capture", str(config.get("model", trace.model.name))]
    turned = switch[0].removeprefix("--").removeprefix("no-").replace("-", "_")
    for name, value, flags in _FLAGS:
        if name != turned and config.get(name) == value:
            words += flags
    for name, default in _VALUES:
        if name != turned and config.get(name, default) != default:
            words += [f"--{name.replace('_', '-')}", str(config[name])]
    suffix = "-".join(switch).strip("-").replace("--", "-")
    output = f"{Path(trace.path).stem}-{suffix}.h5"
    again = [*words, *switch, "-o", output]
    return f"{shlex.join(again)} && {shlex.join(['moeinspect', 'diff', output])}"
