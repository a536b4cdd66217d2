"""Turns what the user asked for into one consistent `RunConfig`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from moeinspect.errors import UsageError
from moeinspect.runtime.builtin_names import builtin_draft_of
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.faults import FAULTS, OWN_DRAFT

UNCHUNKED = 1 << 30
"""A prefill chunk that no prompt fills."""

_TARGET_ONLY: dict[str, Any] = {
    "overlap": False,
    "disagg": False,
    "draft": None,
    "max_running_requests": 1,
    "chunked_prefill_size": UNCHUNKED,
    "backend": "torch",
}


def resolve(config: RunConfig, explicit: frozenset[str]) -> tuple[RunConfig, tuple[str, ...]]:
    """Applies `target_only` and what the faults need; `explicit` names the fields that the user set.

    Returns the resolved configuration and notes for the user.

    Raises:
        UsageError: an unknown fault, or a switch that contradicts `--target-only`.
    """
    unknown = [name for name in config.faults if name not in FAULTS]
    if unknown:
        raise UsageError(f"--fault {unknown[0]}: no such fault", f"known faults: {', '.join(FAULTS)}")
    if config.target_only:
        return _resolve_target_only(config, explicit), ()
    notes: list[str] = []
    for name in dict.fromkeys(config.faults):
        config = _apply_needs(config, name, explicit, notes)
    return config, tuple(notes)


def _resolve_target_only(config: RunConfig, explicit: frozenset[str]) -> RunConfig:
    if config.faults:
        raise UsageError("--target-only and --fault contradict each other", "leave one of them out")
    for field, value in _TARGET_ONLY.items():
        if field in explicit and getattr(config, field) != value:
            raise UsageError(
                f"--target-only and {_option(field, getattr(config, field))} contradict each other",
                "leave one of them out",
            )
    return replace(config, **_TARGET_ONLY)


def _apply_needs(config: RunConfig, name: str, explicit: frozenset[str], notes: list[str]) -> RunConfig:
    for field, value in FAULTS[name].needs.items():
        current = getattr(config, field)
        satisfied = current is not None if field == "draft" else current == value
        if value == OWN_DRAFT:
            value = builtin_draft_of(config.model)
        if satisfied:
            continue
        if field in explicit:
            notes.append(
                f"warning: --fault {name} does nothing in this run: it needs {_need(field, value)}, "
                f"and {_option(field, current)} was given"
            )
        elif value is None:
            raise UsageError(
                f"--fault {name} needs a MoE draft made for {config.model}", "name its folder with --draft"
            )
        else:
            config = replace(config, **{field: value})
            notes.append(f"--fault {name} turned on {_option(field, value)}")
    return config


def _need(field: str, value: object) -> str:
    return "--draft" if field == "draft" else _option(field, value)


def _option(field: str, value: object) -> str:
    flag = "--" + field.replace("_", "-")
    if value is True:
        return flag
    if value is False:
        return flag.replace("--", "--no-", 1)
    return f"{flag} {'none' if value is None else value}"
