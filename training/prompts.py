"""Cuts the built-in prompts out of held-out texts and writes `prompts.json` beside the pair.

A JSON list of {"id", "text", "ids", "source"}. The pieces are drawn with a seed; a piece is taken if its
text is plain, starts a statement or a line of prose, gives the same tokens when it is encoded by itself, and
if the target's greedy continuation neither ends nor repeats itself at once.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import tokenizers
import torch

from training.corpus import Document, read_documents
from training.imported import import_model
from training.model import Model
from training.options import PAIR, parser
from training.sampling import Batch, continue_rows
from training.tokenizer import END_OF_TEXT_ID, read_tokenizer

PROMPTS_FILE = "prompts.json"
LENGTHS = (6, 10, 15, 21, 27, 34, 42, 50, 60, 70)
KINDS = ("library", "prose", "library", "tests")
"""Kinds of text that take turns; a module's text mixes code, comments and docstrings."""
NUM_NEW = 32
_SEED = 6
_TRIES = 200

Continue = Callable[[list[int]], list[int]]
"""Gives the greedy continuation of some token ids."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt: its `text`, the token `ids` of it, and the file that it was cut from."""

    id: str
    text: str
    ids: list[int]
    source: str


def choose_prompts(
    documents: Sequence[Document],
    backend: tokenizers.Tokenizer,
    continued: Continue,
    lengths: Sequence[int] = LENGTHS,
) -> list[Prompt]:
    """One prompt of each length, each from a file of its own."""
    draw = random.Random(_SEED)
    held_out = sorted((d for d in documents if d.split == "heldout"), key=lambda d: d.source)
    pools = {kind: [d for d in held_out if d.kind == kind] for kind in KINDS}
    used: set[str] = set()
    prompts = []
    for number, length in enumerate(lengths):
        pool = [d for d in pools[KINDS[number % len(KINDS)]] if _file(d) not in used]
        prompt = _cut(draw, pool, backend, length, continued)
        used.add(_file(prompt))
        prompts.append(replace(prompt, id=f"prompt-{number}"))
    return prompts


def _file(piece: Document | Prompt) -> str:
    return piece.source.removesuffix(":docstrings")


def _cut(
    draw: random.Random,
    pool: Sequence[Document],
    backend: tokenizers.Tokenizer,
    length: int,
    continued: Continue,
) -> Prompt:
    for _ in range(_TRIES):
        document = draw.choice(pool)
        starts = _starts(document)
        if not starts:
            continue
        start = draw.choice(starts)
        ids = backend.encode(document.text[start : start + 8 * length]).ids[:length]
        text = backend.decode(ids)
        if len(ids) == length and _is_plain(text) and backend.encode(text).ids == ids:
            following = continued(ids)
            if END_OF_TEXT_ID not in following and repeated_share(following) == 0:
                return Prompt("", text, ids, document.source)
    raise SystemExit(f"no piece of {length} tokens found")


def _starts(document: Document) -> list[int]:
    """Where a piece may begin: at a definition or import, or at a line of prose that is not indented."""
    pattern = r"^(?=[A-Z])" if document.kind == "prose" else r"^(?=(def|class|from|import|async def) )"
    return [match.start() for match in re.finditer(pattern, document.text, re.MULTILINE)]


def _is_plain(text: str) -> bool:
    letters = sum(c.isalpha() for c in text)
    return text.isascii() and letters >= 0.5 * len(text.replace(" ", "")) and len(set(text.split())) >= 2


def repeated_share(ids: Sequence[int], n: int = 8) -> float:
    """Share of the n-grams of a text that stand in it before; 0 if it is shorter than n."""
    grams = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def greedy(model: Model) -> Continue:
    """Greedy continuation by `NUM_NEW` tokens."""

    def continued(ids: list[int]) -> list[int]:
        row = torch.tensor([[*ids, *[0] * NUM_NEW]])
        batch = Batch(row, torch.tensor([len(ids)]), torch.zeros(1))
        return continue_rows(model, batch, torch.Generator())[0, len(ids) :].tolist()

    return continued


def main(arguments: Sequence[str] | None = None) -> None:
    """Chooses, writes, and prints the prompts."""
    options = parser(__doc__)
    options.add_argument("--pair", type=Path, default=PAIR, help="where to write (the package)")
    chosen = options.parse_args(arguments)
    model = import_model(chosen.pair / "target")
    prompts = choose_prompts(read_documents(chosen.data), read_tokenizer(chosen.data), greedy(model))
    text = json.dumps([asdict(prompt) for prompt in prompts], indent=1)
    (chosen.pair / PROMPTS_FILE).write_text(text + "\n", encoding="utf-8")
    for prompt in prompts:
        sys.stdout.write(f"{prompt.id} ({len(prompt.ids)} tokens, {prompt.source}): {prompt.text!r}\n")


if __name__ == "__main__":
    main()
