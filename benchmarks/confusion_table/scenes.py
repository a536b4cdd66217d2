"""A scene: a model, prompts and sampling, under which many runs have one and the same baseline."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from confusion_table.checkpoints import draw_checkpoints
from confusion_table.plan import DRAWN, MODELS
from moeinspect.runtime.memory.page_allocator import PAGE_SIZE

_WORDS = ("the", "router", "of", "layer", "nine", "sends", "Überfälle", "2 3 5 7", "(top-k);", "nobody\n")
_MOST_PROMPTS, _LONGEST = 12, 200


@dataclass(frozen=True, slots=True)
class Scene:
    """What the runs of a scene have in common; `folder` holds its prompts and drawn checkpoints."""

    folder: Path
    model: str
    drafts: tuple[str, ...]
    """Drafts that a user can name for the model; those before `ngram` have MoE layers."""
    update: str
    sampling: tuple[str, ...]
    longest: int
    """Positions that the longest request may reach, without a draft's lookahead."""
    plain: bool
    """No trace of the scene can share a baseline: some requests are aborted."""
    vocab: int
    """Token ids that requests may have."""
    requests: str = "prompts"
    """Name of its requests, by which their file and their baseline are called."""

    @property
    def prompts(self) -> Path:
        """The prompts file."""
        return self.folder / f"{self.requests}.jsonl"

    @property
    def baseline(self) -> Path:
        """Where the target-only trace of these requests lies, once it is made."""
        return self.folder / f"{self.requests}-baseline.h5"

    def with_prompts(self, name: str, prompts: Sequence[dict[str, Any]]) -> Scene:
        """The same with other requests, written down under another name."""
        other = replace(
            self,
            longest=max(_length(one) + one["max_new_tokens"] for one in prompts) + PAGE_SIZE,
            plain=any("abort_after" in one for one in prompts),
            requests=name,
        )
        other.prompts.write_text("".join(json.dumps(one) + "\n" for one in prompts))
        return other

    @property
    def is_folder(self) -> bool:
        """The model is no embedded one, so faults cannot turn its draft on by themselves."""
        return not self.model.startswith("builtin:")


def draw_scene(rng: random.Random, folder: Path, models: Sequence[str], *, small: bool = False) -> Scene:
    """Draws a scene with one of these models and writes its files into the empty `folder`.

    `small`: with prompts that take little time, mostly.
    """
    model = rng.choices(models, [MODELS[name] for name in models])[0]
    folder.mkdir(parents=True, exist_ok=True)
    vocab, tokenizer = 256, model.startswith("builtin:")
    if model == DRAWN:
        vocab, model = draw_checkpoints(rng, folder), str(folder / "target")
        drafts, update = (str(folder / "draft"), "ngram", model), str(folder / "updated")
    elif tokenizer:
        heads = ("builtin:random-nextn", "builtin:random-eagle3") if model == "builtin:random" else ()
        drafts, update = (f"{model}-draft", "ngram", model, *heads), f"{model}-updated"
    else:
        drafts, update = ("ngram", model), ""
    prompts = list(_draw_prompts(rng, vocab, tokenizer, small=small))
    scene = Scene(
        folder, model, drafts, update, tuple(_draw_sampling(rng)), longest=0, plain=False, vocab=vocab
    )
    return scene.with_prompts("prompts", prompts)


def _draw_sampling(rng: random.Random) -> Iterator[str]:
    """Everything beside model and prompts that a result may depend on."""
    if rng.random() < 0.3:
        yield from ("--dtype", "bfloat16")
    if rng.random() < 0.5:
        yield from ("--temperature", rng.choice(("0.5", "0.8", "1.0", "1.3")))
        yield from ("--seed", str(rng.randrange(1000)))
        if rng.random() < 0.4:
            yield from ("--top-p", "0.9", "--top-k", "40")
    if rng.random() < 0.4:
        yield "--ignore-eos"


def _draw_prompts(
    rng: random.Random, vocab: int, tokenizer: bool, *, small: bool
) -> Iterator[dict[str, Any]]:
    heads = [[rng.randrange(vocab) for _ in range(rng.choice((16, 20, 32, 48)))] for _ in range(2)]
    mixed, samples, stops, none, aborts = (
        rng.random() < p for p in (0.3, 0.2, 0.25, 0.25, 0.02 if small else 0.06)
    )
    longest, before = rng.choices((20, 60, _LONGEST), (3, 2, 0.5) if small else (1, 1, 1))[0], []
    for number in range(rng.randint(2, _MOST_PROMPTS // (1 + small))):
        one: dict[str, Any] = {"id": f"r{number}", "max_new_tokens": rng.randint(1, 8 if small else 14)}
        kind = rng.choices(("random", "text", "shared", "again", "same"), (5, 2 * tokenizer, 3, 1, 0.5))[0]
        length = max(1, int(longest ** rng.random()))
        if kind == "text":
            one["prompt"] = " ".join(rng.choices(_WORDS, k=max(1, length // 6)))
        elif kind == "again" and before:
            one["input_ids"] = rng.choice(before)
        elif kind == "same":
            one["input_ids"] = [rng.randrange(vocab)] * length
        else:
            own = [rng.randrange(vocab) for _ in range(length)]
            one["input_ids"] = (rng.choice(heads) if kind == "shared" else []) + own
        before += [one["input_ids"]] if "input_ids" in one else []
        if mixed and number and rng.random() < 0.4:
            one["return_routed_experts"] = False
        if samples and rng.random() < 0.3:
            one["n"] = rng.randint(2, 3)
        if stops and rng.random() < 0.6:
            one["stop_token_ids"] = rng.sample(range(vocab), vocab // 4)
        if none and rng.random() < 0.3:
            one["max_new_tokens"] = 0
        if aborts and number and rng.random() < 0.3:
            one["abort_after"] = rng.randint(0, 5)
        if rng.random() < 0.15:
            one["seed"] = rng.randrange(1000)
        yield one


def _length(one: dict[str, Any]) -> int:
    """Tokens at most: no tokenizer makes more of them than there are bytes."""
    return len(one["input_ids"]) if "input_ids" in one else len(one["prompt"].encode()) + 1
