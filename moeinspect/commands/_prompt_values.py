"""Values in a line of a prompts file, checked strictly; every message names file and line (`where`)."""

from __future__ import annotations

import json
from typing import Any, TypeGuard

from moeinspect.errors import InputError

MAX_TOKEN_ID = 2**31 - 1


def text_of(where: str, key: str, value: object) -> str:
    """Text of at least one character, whole in UTF-8."""
    if not isinstance(value, str):
        raise InputError(f'{where}: "{key}" is not text', "write it in double quotes")
    if not value:
        raise InputError(f'{where}: "{key}" is empty', "give at least one character")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f'{where}: "{key}" holds half a surrogate pair', "write whole characters") from error
    return value


def integer_of(where: str, given: dict[str, Any], key: str, low: int, high: int) -> int | None:
    """An integer from `low` to `high`; None if the key is absent."""
    value = given.get(key)
    if value is None:
        return None
    if not is_integer(value) or not low <= value <= high:
        raise InputError(f'{where}: "{key}" is {shown(value)}', f"give an integer from {low} to {high}")
    return int(value)


def is_integer(value: object) -> TypeGuard[int]:
    """Whether JSON spells an integer: true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def shown(value: object) -> str:
    """The value as JSON, cut if it is long."""
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


def flag_of(where: str, given: dict[str, Any], key: str, default: bool) -> bool:
    """True or false."""
    value = given.get(key, default)
    if not isinstance(value, bool):
        raise InputError(f'{where}: "{key}" is not true or false', f"write {json.dumps(default)}")
    return value


def texts_of(where: str, given: dict[str, Any], key: str) -> tuple[str, ...] | None:
    """One text or a list of them; None if the key is absent."""
    value = given.get(key)
    if value is None:
        return None
    return tuple(text_of(where, key, text) for text in (value if isinstance(value, list) else [value]))


def token_ids_of(where: str, key: str, ids: object) -> tuple[int, ...]:
    """A list of token ids, which may be empty."""
    if not isinstance(ids, list):
        raise InputError(f'{where}: "{key}" is not a list of integers', "write such as [1, 2, 3]")
    for position, token in enumerate(ids):
        if not is_integer(token):
            raise InputError(
                f'{where}: "{key}" has {shown(token)} at position {position}', "token ids are integers"
            )
        if not 0 <= token <= MAX_TOKEN_ID:
            raise InputError(
                f'{where}: "{key}" has {shown(token)} at position {position}',
                "token ids are from 0 to the size of the vocabulary",
            )
    return tuple(ids)
