"""Options that have no meaning without, or beside, another one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from moeinspect.errors import UsageError
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.option_words import DEFAULTS, option_words
from moeinspect.runtime.parallel.roster import num_processes

MOST_PROCESSES = 128


@dataclass(frozen=True, slots=True)
class _Rule:
    """`field` means something only if `holds`; `without` says why it means nothing else."""

    field: str
    holds: Callable[[RunConfig], bool]
    without: str
    hint: str


_WITHOUT_DRAFT = ("there is no draft", "name one with --draft or leave it out")
_WITHOUT_DISAGG = ("prefill and decode are in one process", "add --disagg or leave it out")

_RULES = (
    _Rule(
        "host_kv_slots",
        lambda config: config.prefix_cache,
        "there is no prefix cache",
        "add --prefix-cache or leave it out",
    ),
    _Rule("draft_topk", lambda config: config.draft is not None, *_WITHOUT_DRAFT),
    _Rule("adaptive_draft", lambda config: config.draft is not None, *_WITHOUT_DRAFT),
    _Rule("prefill_workers", lambda config: config.disagg, *_WITHOUT_DISAGG),
    _Rule("decode_workers", lambda config: config.disagg, *_WITHOUT_DISAGG),
    _Rule("transfer", lambda config: config.disagg, *_WITHOUT_DISAGG),
    _Rule(
        "rebalance_interval",
        lambda config: config.redundant_experts > 0,
        "there are no redundant experts to move",
        "add --redundant-experts or leave it out",
    ),
    _Rule(
        "weight_updates",
        lambda config: not config.disagg,
        "weights are updated in one process only",
        "leave --disagg or the update out",
    ),
    _Rule(
        "weight_updates",
        lambda config: config.dp_size == 1,
        "data-parallel ranks share their experts and would have to change them at once",
        "leave --dp-size or the update out",
    ),
)


def settle_contradictions(config: RunConfig, explicit: frozenset[str], notes: list[str]) -> RunConfig:
    """`config` without options that the user did not ask for and that mean nothing in it; says which.

    Raises:
        UsageError: the user asked for one of them, or weight updates do not come in ascending steps.
    """
    for rule in _RULES:
        value = getattr(config, rule.field)
        if value == getattr(DEFAULTS, rule.field) or rule.holds(config):
            continue
        if rule.field in explicit:
            raise UsageError(f"{option_words(rule.field, value)}: {rule.without}", rule.hint)
        notes.append(f"warning: {option_words(rule.field, value)} is left out: {rule.without}")
        config = replace(config, **{rule.field: getattr(DEFAULTS, rule.field)})
    steps = [step for step, _ in config.weight_updates]
    if steps != sorted(set(steps)):
        raise UsageError(
            f"{option_words('weight_updates', config.weight_updates)}: the steps do not ascend",
            "give the updates in the order in which they come",
        )
    _check_number_of_processes(config)
    return config


def _check_number_of_processes(config: RunConfig) -> None:
    count = num_processes(config)
    if count > MOST_PROCESSES:
        sizes = [
            option_words(field, getattr(config, field))
            for field in ("prefill_workers", "decode_workers", "dp_size", "tp_size", "pp_size")
            if getattr(config, field) != getattr(DEFAULTS, field)
        ]
        raise UsageError(
            f"{' '.join(sizes)} would be {count} processes, and a run has at most {MOST_PROCESSES}",
            "ask for fewer workers or ranks",
        )
