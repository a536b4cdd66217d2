"""The prompts of a run that names none."""

from __future__ import annotations

import json
import random

from moeinspect.runtime.models.builtin import PAIR
from moeinspect.runtime.models.config import ModelConfig
from moeinspect.runtime.models.tokenizer import Tokenizer

TEXTS = (
    "Hello!",
    "Which expert?",
    "The router sent token 17 to",
    "Routing is a choice of four experts out of thirty-two for",
    "A prefill worker computes the prompt; a decode worker takes",
    "Zeros in every layer of a prompt mean that nobody",
    "2 3 5 7 11 13 17",
    "Zwölf Boxkämpfer jagen Viktor quer über den Sylter Deich",
    "A draft model proposes, the target disposes, and the rejected tok",
    "def route(x):\n    return",
)
_PAIR_NAMES = ("builtin:tiny", "builtin:tiny-draft")
_PAIR_PROMPTS = PAIR / "prompts.json"
_LENGTHS = (6, 13, 27, 57, 70, 49, 16, 61, 65, 24)


def default_prompts(config: ModelConfig, tokenizer: Tokenizer | None) -> list[tuple[str, tuple[int, ...]]]:
    """Ids and token ids of ten prompts of varied length.

    For the trained pair from text that was held out of its training; for another model with a tokenizer
    some sentences, without one seeded random tokens.
    """
    if config.name in _PAIR_NAMES:
        return [(prompt["id"], tuple(prompt["ids"])) for prompt in json.loads(_PAIR_PROMPTS.read_text())]
    if tokenizer is None:
        prompts = [_random_prompt(config, i) for i in range(len(_LENGTHS))]
    else:
        prompts = [tokenizer.encode(text) for text in TEXTS]
    longest = max(1, config.max_position_embeddings // 2)
    return [(f"prompt-{i}", prompt[:longest]) for i, prompt in enumerate(prompts)]


def _random_prompt(config: ModelConfig, index: int) -> tuple[int, ...]:
    draw = random.Random(f"prompt-{index}")
    ordinary = [token for token in range(config.vocab_size) if token not in config.eos_token_ids]
    return tuple(draw.choices(ordinary or range(config.vocab_size), k=_LENGTHS[index]))
