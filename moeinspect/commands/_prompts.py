"""Prompts files: one JSON object a line, checked before anything else is loaded.

Every message names file and line. Optional keys may be null, which is the same as absent. A request
without an id gets the number of its request in the file, counted from 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeGuard

from moeinspect.console import Console
from moeinspect.errors import InputError
from moeinspect.runtime.records import PromptRequest
from moeinspect.trace.request_id import check_request_id

KEYS = ("id", "prompt", "input_ids", "seed", "max_new_tokens", "stop", "return_routed_experts", "n")
MAX_TOKEN_ID = 2**31 - 1
MAX_SEED = 2**63 - 1


class Tokenizer(Protocol):
    """The part of the runtime that turns text into token ids."""

    @property
    def has_tokenizer(self) -> bool:
        """Whether the model comes with a tokenizer."""

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of `text`."""


@dataclass(frozen=True, slots=True)
class PromptLine:
    """One request as it stands in the file; `where` is file and line. Either `text` or `input_ids` is set."""

    where: str
    id: str
    text: str | None
    input_ids: tuple[int, ...] | None
    seed: int | None
    max_new_tokens: int | None


def read_prompts(source: str, console: Console) -> list[PromptLine]:
    """The requests of file `source`, or of stdin if it is `-`.

    Raises:
        InputError: the file cannot be read or holds no request, or a line is not a request.
    """
    name, data = ("stdin", console.prompt_bytes()) if source == "-" else (source, _read(source))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{name}:{line}: not UTF-8 text", "write the prompts as UTF-8") from error
    lines = [
        (f"{name}:{number}", line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()
    ]
    if not lines:
        raise InputError(
            f"{name}: no prompts in it", 'write one JSON object a line, such as {"prompt": "Hi"}'
        )
    prompts = [_parse(where, line, str(position)) for position, (where, line) in enumerate(lines)]
    _check_unique(prompts)
    return prompts


def to_requests(
    prompts: Iterable[PromptLine], tokenizer: Tokenizer, *, max_new_tokens: int, ignore_eos: bool
) -> list[PromptRequest]:
    """Requests for the runtime; `max_new_tokens` serves the lines that name none.

    Raises:
        InputError: a text prompt without a tokenizer, or one that is no token long.
    """
    return [
        PromptRequest(
            id=prompt.id,
            prompt_ids=_encode(prompt, tokenizer) if prompt.input_ids is None else prompt.input_ids,
            max_new_tokens=prompt.max_new_tokens or max_new_tokens,
            seed=prompt.seed,
            ignore_eos=ignore_eos,
        )
        for prompt in prompts
    ]


def _encode(prompt: PromptLine, tokenizer: Tokenizer) -> tuple[int, ...]:
    if not tokenizer.has_tokenizer:
        raise InputError(f"{prompt.where}: the model has no tokenizer for a text prompt", "give input_ids")
    ids = tokenizer.encode(prompt.text or "")
    if not ids:
        raise InputError(f"{prompt.where}: the prompt is no token long", "give a longer prompt")
    return ids


def _read(source: str) -> bytes:
    try:
        return Path(source).read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"{source}: cannot read the prompts: {reason}", "check --prompts") from error


def _parse(where: str, line: str, default_id: str) -> PromptLine:
    record = _load(where, line)
    for key in record:
        if key not in KEYS:
            raise InputError(f"{where}: unknown key {key!r}", f"known keys: {', '.join(KEYS)}")
    given = {key: value for key, value in record.items() if value is not None}
    _refuse_later(where, given)
    text, input_ids = _prompt_of(where, given)
    return PromptLine(
        where=where,
        id=_id_of(where, given.get("id", default_id)),
        text=text,
        input_ids=input_ids,
        seed=_integer(where, given, "seed", 0, MAX_SEED),
        max_new_tokens=_integer(where, given, "max_new_tokens", 1, MAX_TOKEN_ID),
    )


def _load(where: str, line: str) -> dict[str, Any]:
    def unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        record = dict(pairs)
        if len(record) != len(pairs):
            raise ValueError("a key stands in it twice")
        return record

    try:
        record = json.loads(line, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{where}: broken JSON: {error.msg} (column {error.colno})", "write one JSON object a line"
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: broken JSON: {error}", "write one JSON object a line") from error
    if not isinstance(record, dict):
        raise InputError(f"{where}: not a JSON object", 'write lines such as {"id": "a", "prompt": "Hi"}')
    return record


def _refuse_later(where: str, given: dict[str, Any]) -> None:
    later = "is not built yet in this version"
    if "stop" in given:
        raise InputError(f'{where}: "stop" {later}', "leave it out")
    if (_integer(where, given, "n", 1, MAX_TOKEN_ID) or 1) > 1:
        raise InputError(f'{where}: "n" above 1 {later}', "leave it out and repeat the line with other ids")
    wanted = given.get("return_routed_experts", True)
    if not isinstance(wanted, bool):
        raise InputError(f'{where}: "return_routed_experts" is not true or false', "write true")
    if not wanted:
        raise InputError(f'{where}: "return_routed_experts": false {later}', "leave it out")
    if given.get("max_new_tokens") == 0 and given["max_new_tokens"] is not False:
        raise InputError(f'{where}: "max_new_tokens": 0 {later}', "give 1 or more")


def _prompt_of(where: str, given: dict[str, Any]) -> tuple[str | None, tuple[int, ...] | None]:
    text, ids = given.get("prompt"), given.get("input_ids")
    if (text is None) == (ids is None):
        state = "neither" if text is None else "both"
        raise InputError(f'{where}: {state} of "prompt" and "input_ids"', "give exactly one of them")
    if text is not None:
        return _text_of(where, "prompt", text), None
    if not isinstance(ids, list):
        raise InputError(f'{where}: "input_ids" is not a list of integers', "write such as [1, 2, 3]")
    if not ids:
        raise InputError(f'{where}: "input_ids" is empty', "give at least one token id")
    for position, token in enumerate(ids):
        if not _is_integer(token):
            raise InputError(
                f'{where}: "input_ids" has {_shown(token)} at position {position}', "token ids are integers"
            )
        if not 0 <= token <= MAX_TOKEN_ID:
            raise InputError(
                f'{where}: "input_ids" has {_shown(token)} at position {position}',
                "token ids are from 0 to the size of the vocabulary",
            )
    return None, tuple(ids)


def _id_of(where: str, value: object) -> str:
    """An id is text; a number is taken as it is written."""
    text = str(value) if _is_integer(value) else _text_of(where, "id", value)
    try:
        check_request_id(text)
    except InputError as error:
        raise InputError(f"{where}: {error.message}", error.hint) from error
    return text


def _text_of(where: str, key: str, value: object) -> str:
    if not isinstance(value, str):
        raise InputError(f'{where}: "{key}" is not text', "write it in double quotes")
    if not value:
        raise InputError(f'{where}: "{key}" is empty', "give at least one character")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f'{where}: "{key}" holds half a surrogate pair', "write whole characters") from error
    return value


def _integer(where: str, given: dict[str, Any], key: str, low: int, high: int) -> int | None:
    value = given.get(key)
    if value is None:
        return None
    if not _is_integer(value) or not low <= value <= high:
        raise InputError(f'{where}: "{key}" is {_shown(value)}', f"give an integer from {low} to {high}")
    return int(value)


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _check_unique(prompts: Iterable[PromptLine]) -> None:
    seen: dict[str, str] = {}
    for prompt in prompts:
        if prompt.id in seen:
            raise InputError(
                f"{prompt.where}: id {prompt.id!r} stands at {seen[prompt.id]} already",
                "give every request an id of its own",
            )
        seen[prompt.id] = prompt.where
