"""What a trace's `run_config` says of its run, checked: a trace is a file from anywhere."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from moeinspect.errors import InputError
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.records import RequestKey
from moeinspect.trace.schema import Trace

_MAY_BE_NONE = ("draft", "num_kv_slots")
_PAIRS = "weight_updates"
_DEFAULTS = RunConfig()


def recorded_options(trace: Trace, names: Iterable[str], hint: str) -> dict[str, Any]:
    """Options of the trace's run by their names in `RunConfig`.

    Raises:
        InputError: one of them is missing or has no usable value; `hint` says what to do then.
    """
    options = {}
    for name in names:
        value = trace.run.run_config.get(name)
        if not _is_usable(name, value):
            raise InputError(f"{trace.path}: its run_config does not tell a usable {name} ({value!r})", hint)
        options[name] = _as_tuple(value)
    return options


def recorded_run(trace: Trace) -> RunConfig:
    """All options of the trace's run, and the faults of its runtime: what runs the same engine again.

    Sizes that the run chose by itself are left to the run again.

    Raises:
        InputError: the trace does not tell them.
    """
    automatic = trace.run.run_config.get("automatic")
    chosen = set(automatic) if isinstance(automatic, list) else set()
    names = [field.name for field in fields(RunConfig) if field.name not in {"faults", *chosen}]
    options = recorded_options(trace, names, "record it again with this version")
    return RunConfig(**options, faults=trace.run.injected_faults)


def request_seeds(trace: Trace) -> dict[str, int]:
    """Seeds by id of the requests that named one."""
    seeds: Any = trace.run.run_config.get("request_seeds", {})
    if not isinstance(seeds, dict) or not all(type(seed) is int for seed in seeds.values()):
        raise InputError(f"{trace.path}: request_seeds in its run_config are no seeds by id")
    return {str(key): seed for key, seed in seeds.items()}


def not_opted_in(trace: Trace) -> set[RequestKey]:
    """Requests that did not ask for their routed experts."""
    keys: Any = trace.run.run_config.get("not_opted_in", [])
    match keys:
        case [*keys] if all(_is_key(key) for key in keys):
            return {(request_id, sample) for request_id, sample in keys}
    raise InputError(f"{trace.path}: not_opted_in in its run_config is no list of ids and samples")


def _is_usable(name: str, value: object) -> bool:
    default = getattr(_DEFAULTS, name)
    if name in _MAY_BE_NONE:
        return value is None or type(value) is (str if name == "draft" else int)
    if isinstance(default, tuple):
        fits = _is_update if name == _PAIRS else _is_text
        return isinstance(value, list) and all(map(fits, value))
    if isinstance(default, float):
        return type(value) in (int, float)
    return type(value) is type(default)


def _is_update(value: object) -> bool:
    match value:
        case [int(step), str()]:
            return not isinstance(step, bool)
    return False


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_key(value: object) -> bool:
    match value:
        case [str(), int(sample)]:
            return not isinstance(sample, bool)
    return False


def _as_tuple(value: Any) -> Any:  # noqa: ANN401  # any value of JSON
    return tuple(_as_tuple(item) for item in value) if isinstance(value, list) else value
