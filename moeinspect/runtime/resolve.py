"""Turns what the user asked for into one consistent `RunConfig`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from moeinspect.errors import UsageError
from moeinspect.runtime.builtin_names import NGRAM, builtin_draft_of, builtin_update_of
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.contradictions import settle_contradictions
from moeinspect.runtime.faults import ANY_DRAFT, FAULTS, OWN_DRAFT, OWN_UPDATE
from moeinspect.runtime.option_words import DEFAULTS, option_words
from moeinspect.runtime.parallel.layout import RankLayout
from moeinspect.runtime.traffic import TRAFFICS

UNCHUNKED = 1 << 30
"""A prefill chunk that no prompt fills."""

OWN_PROMPTS = "prompts"
"""Among the explicit fields: the user brings the requests."""

_UPDATE_STEP = 8
"""Step of a weight update that a fault turns on: the first requests are in the middle of their outputs."""

TARGET_ONLY: dict[str, Any] = {
    "overlap": False,
    "disagg": False,
    "prefill_workers": 1,
    "decode_workers": 1,
    "transfer": "shm",
    "dp_size": 1,
    "tp_size": 1,
    "pp_size": 1,
    "redundant_experts": 0,
    "fused_shared_expert": False,
    "stream": False,
    "draft": None,
    "draft_topk": 1,
    "adaptive_draft": False,
    "prefix_cache": False,
    "host_kv_slots": 0,
    "graph": False,
    "weight_updates": (),
    "max_running_requests": 1,
    "chunked_prefill_size": UNCHUNKED,
    "backend": "torch",
}
"""What `--target-only` sets; a contrary switch beside it is refused."""

_CAPACITIES = ("host_kv_slots", "redundant_experts")
"""Needs of which any size will do, beside the one that is turned on."""


def resolve(config: RunConfig, explicit: frozenset[str]) -> tuple[RunConfig, tuple[str, ...]]:
    """Applies `target_only` and what faults and traffic need; `explicit` names the fields that the user set.

    With `OWN_PROMPTS` among them no traffic is brought along. Returns the resolved configuration and notes
    for the user.

    Raises:
        UsageError: an unknown fault or traffic, or switches that contradict each other.
    """
    for option, names, known in (("--fault", config.faults, FAULTS), ("--traffic", config.traffic, TRAFFICS)):
        unknown = [name for name in names if name not in known]
        if unknown:
            kind = option.removeprefix("--")
            raise UsageError(f"{option} {unknown[0]}: no such {kind}", f"known {kind}s: {', '.join(known)}")
    if config.target_only:
        return _resolve_target_only(config, explicit), ()
    notes: list[str] = []
    config = _choose_model(config, explicit, notes)
    able = []
    for name in dict.fromkeys(config.faults):
        inert = _inert(config, name, explicit)
        if inert:
            notes.append(inert)
        elif _satisfied("model", config.model, FAULTS[name].needs.get("model", config.model)):
            config = _apply_needs(config, name, notes)
            able.append(name)
    config = _bring_traffic(config, able, explicit, notes)
    wanted = config
    config = settle_contradictions(config, explicit, notes)
    notes += _inert_by_contradiction(wanted, config)
    notes += [note for note in _inert_over_ranks(config) if note not in notes]
    return config, tuple(notes)


def _inert(config: RunConfig, name: str, explicit: frozenset[str]) -> str:
    """Why a fault can do nothing whatever is turned on for it; empty if it can."""
    for field, need in FAULTS[name].needs.items():
        current = getattr(config, field)
        if field in explicit and field != "model" and not _satisfied(field, current, need):
            wanted, given = _need_words(field, _turned_on(config, need)), option_words(field, current)
            return (
                f"warning: --fault {name} does nothing in this run: it needs {wanted}, and {given} was given"
            )
    return next(iter(_inert_over_ranks(replace(config, faults=(name,)))), "")


def _inert_by_contradiction(wanted: RunConfig, config: RunConfig) -> list[str]:
    """Warnings for the faults that lost what they need because it does not go with the other options."""
    return [
        f"warning: --fault {name} does nothing in this run: {_need_words(field, getattr(wanted, field))} is "
        "left out"
        for name in dict.fromkeys(config.faults)
        for field, need in FAULTS[name].needs.items()
        if _satisfied(field, getattr(wanted, field), need)
        and not _satisfied(field, getattr(config, field), need)
    ]


def _inert_over_ranks(config: RunConfig) -> list[str]:
    """Warnings for the faults that only a worker of one rank commits."""
    if RankLayout.of(config).size == 1:
        return []
    return [
        f"warning: --fault {name} does nothing in this run: it needs workers of one rank each"
        for name in dict.fromkeys(config.faults)
        if FAULTS[name].one_rank
    ]


def _resolve_target_only(config: RunConfig, explicit: frozenset[str]) -> RunConfig:
    if config.faults:
        raise UsageError("--target-only and --fault contradict each other", "leave one of them out")
    for field, value in TARGET_ONLY.items():
        if field in explicit and getattr(config, field) != value:
            raise UsageError(
                f"--target-only and {option_words(field, getattr(config, field))} contradict each other",
                "leave one of them out",
            )
    return replace(config, **TARGET_ONLY)


def _choose_model(config: RunConfig, explicit: frozenset[str], notes: list[str]) -> RunConfig:
    """The model that faults need, where the user named none; before drafts, which belong to a model."""
    chosen_for = ""
    for name in dict.fromkeys(config.faults):
        model = FAULTS[name].needs.get("model")
        if model is None or _satisfied("model", config.model, model):
            continue
        if "model" in explicit:
            notes.append(
                f"warning: --fault {name} does nothing in this run: it needs {model}, and {config.model} was "
                "given"
            )
        elif chosen_for:
            raise UsageError(
                f"--fault {chosen_for} runs {config.model} and --fault {name} needs {model}",
                "leave one of them out",
            )
        else:
            chosen_for = name
            config = replace(config, model=model)
            notes.append(f"--fault {name} turned on {model}")
    return config


def _apply_needs(config: RunConfig, name: str, notes: list[str]) -> RunConfig:
    for field, need in FAULTS[name].needs.items():
        if _satisfied(field, getattr(config, field), need):
            continue
        value = _turned_on(config, need)
        if value is None:
            what, option = (
                ("a MoE draft made", "--draft") if need == OWN_DRAFT else ("newer weights", "--weight-update")
            )
            raise UsageError(
                f"--fault {name} needs {what} for {config.model}", f"name its folder with {option}"
            )
        config = replace(config, **{field: value})
        notes.append(f"--fault {name} turned on {option_words(field, value)}")
    return config


def _satisfied(field: str, current: object, need: object) -> bool:
    if field == "model":
        return current in (need, f"{need}-updated")
    if need == OWN_DRAFT:
        return current not in (None, NGRAM)
    if need == ANY_DRAFT:
        return current is not None
    if need == OWN_UPDATE:
        return bool(current)
    if isinstance(need, int) and not isinstance(need, bool):
        return isinstance(current, int) and current >= (1 if field in _CAPACITIES else need)
    return current == need


def _turned_on(config: RunConfig, need: Any) -> Any:  # noqa: ANN401  # as the fields of a configuration
    """What a need sets its field to; None if that is up to the user."""
    if need == OWN_DRAFT:
        return builtin_draft_of(config.model)
    if need == ANY_DRAFT:
        return builtin_draft_of(config.model) or NGRAM
    if need == OWN_UPDATE:
        updated = builtin_update_of(config.model)
        return None if updated is None else ((_UPDATE_STEP, updated),)
    return need


def _need_words(field: str, value: object) -> str:
    flags = {"draft": "--draft", "weight_updates": "--weight-update"}
    return flags.get(field) or option_words(field, value)


def _bring_traffic(
    config: RunConfig, faults: Sequence[str], explicit: frozenset[str], notes: list[str]
) -> RunConfig:
    """The traffic that these faults need and the options that go with it, if the user brings no requests."""
    if OWN_PROMPTS in explicit:
        return config
    for name in faults:
        traffic = FAULTS[name].traffic
        if traffic and traffic not in config.traffic and "traffic" not in explicit:
            config = replace(config, traffic=(*config.traffic, traffic))
            notes.append(f"--fault {name} brings --traffic {traffic}: {TRAFFICS[traffic].summary}")
    for name in config.traffic:
        unset = {
            field: value
            for field, value in TRAFFICS[name].options.items()
            if field not in explicit and getattr(config, field) == getattr(DEFAULTS, field)
        }
        config = replace(config, **unset)
    return config
