"""Prompts files: one JSON object a line, checked before anything else is loaded.

Every message names file and line. Optional keys may be null, which is the same as absent. A request
without an id gets the number of its request in the file, counted from 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from moeinspect.commands._prompt_values import (
    MAX_TOKEN_ID,
    flag_of,
    integer_of,
    is_integer,
    text_of,
    texts_of,
    token_ids_of,
)
from moeinspect.console import Console
from moeinspect.errors import InputError
from moeinspect.runtime.records import PromptRequest
from moeinspect.trace.request_id import check_request_id

KEYS = (
    "id",
    "prompt",
    "input_ids",
    "seed",
    "max_new_tokens",
    "stop",
    "stop_token_ids",
    "return_routed_experts",
    "n",
    "abort_after",
)
MAX_SEED = 2**63 - 1
MAX_SAMPLES = 10_000


class Tokenizer(Protocol):
    """The part of the runtime that turns text into token ids."""

    @property
    def has_tokenizer(self) -> bool:
        """Whether the model comes with a tokenizer."""

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of `text`."""


@dataclass(frozen=True, slots=True)
class PromptLine:
    """One request as it stands in the file; `where` is file and line. Either `text` or `input_ids` is set.

    None: the file does not say, and what the command line says counts.
    """

    where: str
    id: str
    text: str | None
    input_ids: tuple[int, ...] | None
    seed: int | None = None
    max_new_tokens: int | None = None
    stop: tuple[str, ...] | None = None
    stop_token_ids: tuple[int, ...] = ()
    return_routed_experts: bool = True
    n: int = 1
    abort_after: int | None = None


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
    prompts: Iterable[PromptLine],
    tokenizer: Tokenizer,
    *,
    max_new_tokens: int,
    ignore_eos: bool,
    stop: tuple[str, ...] = (),
) -> list[PromptRequest]:
    """Requests for the runtime, one for each sample; the options serve the lines that name none.

    Raises:
        InputError: a text prompt or a stop string without a tokenizer, or a prompt that is no token long.
    """
    requests = []
    for prompt in prompts:
        stops = stop if prompt.stop is None else prompt.stop
        if stops and not tokenizer.has_tokenizer:
            raise InputError(
                f"{prompt.where}: the model has no tokenizer for a stop string", "give stop_token_ids"
            )
        first = PromptRequest(
            id=prompt.id,
            prompt_ids=_encode(prompt, tokenizer) if prompt.input_ids is None else prompt.input_ids,
            max_new_tokens=max_new_tokens if prompt.max_new_tokens is None else prompt.max_new_tokens,
            seed=prompt.seed,
            ignore_eos=ignore_eos,
            stop=stops,
            stop_token_ids=prompt.stop_token_ids,
            return_routed_experts=prompt.return_routed_experts,
            abort_after=prompt.abort_after,
        )
        requests += [replace(first, sample=sample) for sample in range(prompt.n)]
    return requests


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
    text, input_ids = _prompt_of(where, given)
    return PromptLine(
        where=where,
        id=_id_of(where, given.get("id", default_id)),
        text=text,
        input_ids=input_ids,
        seed=integer_of(where, given, "seed", 0, MAX_SEED),
        max_new_tokens=integer_of(where, given, "max_new_tokens", 0, MAX_TOKEN_ID),
        stop=texts_of(where, given, "stop"),
        stop_token_ids=token_ids_of(where, "stop_token_ids", given.get("stop_token_ids", [])),
        return_routed_experts=flag_of(where, given, "return_routed_experts", True),
        n=integer_of(where, given, "n", 1, MAX_SAMPLES) or 1,
        abort_after=integer_of(where, given, "abort_after", 0, MAX_TOKEN_ID),
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


def _prompt_of(where: str, given: dict[str, Any]) -> tuple[str | None, tuple[int, ...] | None]:
    text, ids = given.get("prompt"), given.get("input_ids")
    if (text is None) == (ids is None):
        state = "neither" if text is None else "both"
        raise InputError(f'{where}: {state} of "prompt" and "input_ids"', "give exactly one of them")
    if text is not None:
        return text_of(where, "prompt", text), None
    token_ids = token_ids_of(where, "input_ids", ids)
    if not token_ids:
        raise InputError(f'{where}: "input_ids" is empty', "give at least one token id")
    return None, token_ids


def _id_of(where: str, value: object) -> str:
    """An id is text; a number is taken as it is written."""
    text = str(value) if is_integer(value) else text_of(where, "id", value)
    try:
        check_request_id(text)
    except InputError as error:
        raise InputError(f"{where}: {error.message}", error.hint) from error
    return text


def _check_unique(prompts: Iterable[PromptLine]) -> None:
    seen: dict[str, str] = {}
    for prompt in prompts:
        if prompt.id in seen:
            raise InputError(
                f"{prompt.where}: id {prompt.id!r} stands at {seen[prompt.id]} already",
                "give every request an id of its own",
            )
        seen[prompt.id] = prompt.where
