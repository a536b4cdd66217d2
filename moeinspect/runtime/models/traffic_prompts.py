"""Requests of a run that was given none: the built-in prompts, or the traffic that it names."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import cycle, islice

from moeinspect.runtime import traffic
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.models.config import ModelConfig
from moeinspect.runtime.models.default_prompts import default_prompts
from moeinspect.runtime.models.tokenizer import Tokenizer
from moeinspect.runtime.records import PromptRequest

_MOST_STOPS = 4096


@dataclass(frozen=True, slots=True)
class _Source:
    """Token ids that the model may be asked about, and what every request takes from the configuration."""

    config: RunConfig
    vocab_size: int
    text: tuple[int, ...]

    def ids(self, start: int, length: int) -> tuple[int, ...]:
        """`length` tokens of the built-in prompts, which stand in a ring, from `start` on."""
        return tuple(islice(cycle(self.text), start % len(self.text), start % len(self.text) + length))

    def request(self, name: str, ids: tuple[int, ...]) -> PromptRequest:
        """A request under the options of the run."""
        config = self.config
        return PromptRequest(
            name, ids, config.max_new_tokens, ignore_eos=config.ignore_eos, stop=tuple(config.stop)
        )


def default_requests(
    config: RunConfig, model: ModelConfig, tokenizer: Tokenizer | None
) -> list[PromptRequest]:
    """The requests of a run that names none; ids are unique over all traffics."""
    prompts = default_prompts(model, tokenizer)
    source = _Source(config, model.vocab_size, tuple(token for _, ids in prompts for token in ids))
    if not config.traffic:
        return [source.request(name, ids) for name, ids in (*prompts, *_followers(prompts))]
    longest = max(1, model.max_position_embeddings // 2)
    return [
        replace(request, id=f"{name}-{index}", prompt_ids=request.prompt_ids[:longest])
        for name in dict.fromkeys(config.traffic)
        for index, request in enumerate(_MAKERS[name](source))
    ]


def _followers(prompts: list[tuple[str, tuple[int, ...]]]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Three more prompts, each the beginning of an earlier one with another end: prefixes to share."""
    for index, (begin, end) in enumerate(((-4, 2), (-3, 3), (-2, 1)), start=len(prompts)):
        prefix = prompts[begin][1]
        yield f"prompt-{index}", prefix[: max(1, len(prefix) * 3 // 4)] + prompts[end][1][:15]


def _shared_prefixes(source: _Source) -> Iterator[PromptRequest]:
    """Three prefixes of 48 tokens, in turn, five times over; each time with another end."""
    for turn in range(5):
        for prefix in range(3):
            ids = source.ids(100 * prefix, 48) + source.ids(7 + 41 * turn + 13 * prefix, 5 + 2 * turn)
            yield source.request("", ids)


def _mixed_opt_in(source: _Source) -> Iterator[PromptRequest]:
    """Short prompts of one length, so that they end in one step; half of them opt out.

    In an order in which two workers that take turns get both kinds.
    """
    for index in range(8):
        request = replace(source.request("", source.ids(31 * index, 7)), ignore_eos=True)
        yield replace(request, return_routed_experts=index % 4 in (1, 2))


def _stops(source: _Source) -> Iterator[PromptRequest]:
    """Every third token is a stop: sooner or later a draft is right about one and about what follows it."""
    drawn = random.Random("stops").sample(range(source.vocab_size), min(source.vocab_size // 3, _MOST_STOPS))
    for index in range(16):
        ids = source.ids(19 * index, 6 + 3 * index)
        yield replace(source.request("", ids), stop_token_ids=tuple(sorted(drawn)))


def _prefill_only(source: _Source) -> Iterator[PromptRequest]:
    """Every other request samples nothing."""
    for index in range(10):
        request = source.request("", source.ids(29 * index, 5 + 7 * index))
        yield replace(request, max_new_tokens=0) if index % 2 == 0 else request


def _chunk_seams(source: _Source) -> Iterator[PromptRequest]:
    """Prompts that reach 1 to 6 tokens into their second or third chunk."""
    chunk = min(source.config.chunked_prefill_size, 64)
    for index in range(6):
        yield source.request("", source.ids(23 * index, chunk * (1 + index % 2) + 1 + index))


_MAKERS: dict[str, Callable[[_Source], Iterator[PromptRequest]]] = {
    traffic.SHARED_PREFIXES: _shared_prefixes,
    traffic.MIXED_OPT_IN: _mixed_opt_in,
    traffic.STOPS: _stops,
    traffic.PREFILL_ONLY: _prefill_only,
    traffic.CHUNK_SEAMS: _chunk_seams,
}
