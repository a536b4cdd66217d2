"""What a run says about itself, and the command that runs it again with one switch turned."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeinspect.analysis.diagnose.catalogue import CAUSES
from moeinspect.analysis.findings import Diagnosis
from moeinspect.analysis.requests import LOCAL
from moeinspect.trace.schema import Origin, Trace

_FLAGS: tuple[tuple[str, object, tuple[str, ...]], ...] = (
    ("disagg", True, ("--disagg",)),
    ("overlap", False, ("--no-overlap",)),
    ("weights", True, ("--weights",)),
    ("ignore_eos", True, ("--ignore-eos",)),
    ("deterministic", False, ("--no-deterministic",)),
)
_VALUES: tuple[tuple[str, object], ...] = (
    ("draft", None),
    ("num_draft_tokens", 4),
    ("chunked_prefill_size", 64),
    ("max_running_requests", 16),
    ("max_new_tokens", 32),
    ("temperature", 0.0),
    ("seed", 0),
    ("dtype", "float32"),
    ("backend", "torch"),
)


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Switches of a run; None: the trace does not tell."""

    overlap: bool | None
    disagg: bool | None
    draft: bool | None
    draft_tree: bool | None


def run_facts(trace: Trace) -> RunFacts:
    """What `run_config` says, in the local runtime's words or SGLang's."""
    config = trace.run.run_config
    overlap = _flag(config, "overlap")
    if overlap is None and "disable_overlap_schedule" in config:
        overlap = not config["disable_overlap_schedule"]
    disagg = _flag(config, "disagg")
    if disagg is None and "disaggregation_mode" in config:
        disagg = config["disaggregation_mode"] not in (None, "null", "")
    width = config.get("draft_topk", config.get("speculative_eagle_topk"))
    return RunFacts(overlap, disagg, _draft(config), None if width is None else int(width) > 1)


def _draft(config: Mapping[str, Any]) -> bool | None:
    if "draft" in config:
        return config["draft"] not in (None, "", "none")
    return bool(config["speculative_algorithm"]) if "speculative_algorithm" in config else None


def _flag(config: Mapping[str, Any], name: str) -> bool | None:
    value = config.get(name)
    return None if value is None else bool(value)


def knows_workers(trace: Trace) -> bool:
    """Whether `/rows/worker` and `/rows/step` say anything: an importer cannot know them."""
    return len(trace.rows) > 0 and bool((trace.rows.origin != Origin.IMPORTED).all())


def diagnosis(
    cause: str, confidence: float, because: list[str], trace: Trace, *, next_step: str | None = None
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
