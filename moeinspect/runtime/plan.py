"""Sizes of a run, from its configuration and its requests; what cannot run is refused here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moeinspect.errors import InputError
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.memory.page_allocator import PAGE_SIZE, slots_in_pages
from moeinspect.runtime.records import PromptRequest


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of the buffers of one worker.

    `num_slots` counts the page of the dummy slot too; `max_len` is the longest sequence with its
    lookahead, `max_tokens` the most rows of one forward, `width` the positions that a decode or verify step
    writes for a request.
    """

    num_slots: int
    max_len: int
    max_tokens: int
    max_running_requests: int
    lookahead: int
    width: int = 1

    @property
    def num_kv_slots(self) -> int:
        """Slots that requests can use."""
        return self.num_slots - PAGE_SIZE


def lookahead_of(config: RunConfig) -> int:
    """Positions past a request's last output that a step may write.

    A verify step feeds `num_draft_tokens` past the last token; with overlap one more step starts from
    whatever that one accepted before the host sees that the request has ended.
    """
    return 0 if config.draft is None else 2 * config.num_draft_tokens


def check_requests(
    config: RunConfig, requests: Sequence[PromptRequest], vocab_size: int, max_position_embeddings: int
) -> None:
    """Refuses requests that cannot run.

    Raises:
        InputError: no requests, an empty prompt, a token id outside the vocabulary, a request longer than
            the context or than the KV slots.
    """
    if not requests:
        raise InputError("there are no prompts to run", "give at least one line in --prompts")
    for request in requests:
        where = f"prompt {request.id!r}"
        if not request.prompt_ids:
            raise InputError(f"{where} is empty", "give it at least one token")
        if request.max_new_tokens < 0:
            raise InputError(f"{where} asks for {request.max_new_tokens} new tokens", "ask for 0 or more")
        for token in request.prompt_ids:
            if not 0 <= token < vocab_size:
                raise InputError(
                    f"{where} has token id {token}, outside the vocabulary of {vocab_size}",
                    "use the tokenizer of this model",
                )
        length = _longest(config, request)
        if length > max_position_embeddings:
            raise InputError(
                f"{where} needs {length} positions ({_parts(config, request)}) and the model has "
                f"{max_position_embeddings}",
                "shorten the prompt or lower --max-new-tokens",
            )
        if config.num_kv_slots is not None and slots_in_pages(length) > _usable(config.num_kv_slots):
            raise InputError(
                f"{where} needs {slots_in_pages(length)} KV slots ({_parts(config, request)}, in pages of "
                f"{PAGE_SIZE}) and --num-kv-slots {config.num_kv_slots} has {_usable(config.num_kv_slots)}",
                "raise --num-kv-slots, shorten the prompt or lower --max-new-tokens",
            )


def make_plan(config: RunConfig, requests: Sequence[PromptRequest]) -> Plan:
    """Sizes for checked requests; without `num_kv_slots` every running request fits at its longest."""
    lookahead = lookahead_of(config)
    lengths = sorted((_longest(config, request) for request in requests), reverse=True)
    if config.num_kv_slots is None:
        usable = sum(slots_in_pages(length) for length in lengths[: config.max_running_requests])
    else:
        usable = _usable(config.num_kv_slots)
    width = 1 if config.draft is None else 1 + config.num_draft_tokens
    running = min(config.max_running_requests, len(requests))
    # A request that was preempted computes its outputs again in a prefill.
    fills = sorted((len(r.prompt_ids) + r.max_new_tokens for r in requests), reverse=True)
    prefill_tokens = sum(fills[:running])
    return Plan(
        num_slots=PAGE_SIZE + usable,
        max_len=slots_in_pages(lengths[0]),
        max_tokens=max(min(config.chunked_prefill_size, prefill_tokens), running * width),
        max_running_requests=running,
        lookahead=lookahead,
        width=width,
    )


def _longest(config: RunConfig, request: PromptRequest) -> int:
    """Positions that a request may reach."""
    if request.max_new_tokens == 0:
        return len(request.prompt_ids)
    return len(request.prompt_ids) + request.max_new_tokens + lookahead_of(config)


def _usable(num_kv_slots: int) -> int:
    return num_kv_slots // PAGE_SIZE * PAGE_SIZE


def _parts(config: RunConfig, request: PromptRequest) -> str:
    parts = f"prompt {len(request.prompt_ids)} + new {request.max_new_tokens}"
    return f"{parts} + drafts {lookahead_of(config)}" if lookahead_of(config) else parts
