"""Typed access to the keys of a JSON object; every complaint names the file and the key."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moeinspect.errors import InputError

_MAX_INTEGER = 2**31


class Fields:
    """A JSON object and the place it came from."""

    def __init__(self, data: Mapping[str, Any], source: str) -> None:
        self._data = data
        self.source = source

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ANN401 - JSON holds anything
        """The raw value of a key; JSON null counts as a value."""
        return self._data.get(key, default)

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number of at least 1; absent or null means `default`, or an error without one."""
        value = self._present(key, default)
        if type(value) is not int or not 1 <= value < _MAX_INTEGER:
            raise self.error(key, f"must be a whole number of at least 1, not {_shown(value)}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self._present(key, default)
        if type(value) not in (int, float) or not 0 < value < math.inf:
            raise self.error(key, f"must be a number above 0, not {_shown(value)}")
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._present(key, default)
        if type(value) is not bool:
            raise self.error(key, f"must be true or false, not {_shown(value)}")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers; absent or null means none."""
        value = self.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise self.error(key, f"must be a list of whole numbers, not {_shown(value)}")
        return tuple(value)

    def strings(self, key: str) -> tuple[str, ...]:
        """A list of strings; absent or null means none."""
        value = self.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(key, f"must be a list of strings, not {_shown(value)}")
        return tuple(value)

    def error(self, key: str, problem: str, hint: str = "") -> InputError:
        """An error about one key."""
        return InputError(f"{self.source}: {key} {problem}", hint)

    def _present(self, key: str, default: Any) -> Any:  # noqa: ANN401 - JSON holds anything
        value = self.get(key)
        if value is not None:
            return value
        if default is None:
            raise self.error(key, "is missing")
        return default


def read_json_object(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds.

    Raises:
        InputError: the file cannot be read, is not JSON, or holds something else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read: {error.strerror}",
            "give a checkpoint folder with config.json and safetensors, or builtin:tiny",
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path}: must hold a JSON object")
    return value


def _shown(value: Any) -> str:  # noqa: ANN401 - JSON holds anything
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
