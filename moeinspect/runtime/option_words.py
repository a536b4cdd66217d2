"""How fields of a `RunConfig` are spelled on the command line."""

from __future__ import annotations

from moeinspect.runtime.config import RunConfig

DEFAULTS = RunConfig()

_FLAGS = {"weight_updates": "--weight-update"}


def option_words(field: str, value: object) -> str:
    """A field and its value as options, such as `--no-overlap` or `--draft none`."""
    flag = _FLAGS.get(field, "--" + field.replace("_", "-"))
    if value is True:
        return flag
    if value is False:
        return flag.replace("--", "--no-", 1)
    if field == "weight_updates" and isinstance(value, tuple):
        return " ".join(f"{flag} {step}:{model}" for step, model in value)
    return f"{flag} {'none' if value is None else value}"
