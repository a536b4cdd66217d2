"""Writes the model cards of the pair from the figures of its evaluation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from training.corpus import MANIFEST_FILE
from training.options import PAIR, parser

EVALUATION_FILE = "evaluation.json"

_ROLE = {
    "target": "the model whose routing moeinspect's examples and tests look at",
    "draft": "the model that proposes tokens to the target in speculative decoding",
}


def write_cards(pair: Path, figures: Mapping[str, Any], corpus: Mapping[str, Any]) -> None:
    """Writes `README.md` into both folders of the pair."""
    for name in ("target", "draft"):
        parts = [_head(name, figures), _training(name, figures, corpus), _text(name, figures)]
        parts += [_routing(name, figures), *_pair(name, figures)]
        (pair / name / "README.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _head(name: str, figures: Mapping[str, Any]) -> str:
    return f"""---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
language: [en, code]
---

# moeinspect pair: {name}

A Qwen3-MoE of {figures["parameters"][name]:,} parameters: {_ROLE[name]}. It writes text
that looks like the Python standard library; it knows nothing, and is of no use as a language model.
`config.json`, `model.safetensors` (bfloat16) and `tokenizer.json` are in the usual Hugging Face layout;
transformers loads them as they are. The folder is written by `python -m training.export`, this page by
`python -m training.card`; how to make them again stands in docs/embedded-pair.md."""


def _training(name: str, figures: Mapping[str, Any], corpus: Mapping[str, Any]) -> str:
    facts, sizes = figures["training"][name], corpus["sizes"]
    rows = [
        (kind, *(f"{sizes[kind][split][what]:,}" for split in ("train", "heldout") for what in _SIZES))
        for kind in sizes
    ]
    how = (
        "Next-token loss and the family's load-balancing loss, AdamW, one cosine, dropout 0.1."
        if name == "target"
        else "Distilled from the target: KL divergence to its predictions, and cross-entropy on its most\n"
        f"likely token, on the corpus and on {facts['written_tokens']:,} tokens that the target wrote.\n"
        "Nothing was copied from the target; experts and routers are the draft's own."
    )
    return f"""## Training

Corpus: {corpus["source"]}, licence {corpus["licence"]}: modules, their docstrings as
prose, the tests, and the language reference's topics that `help()` shows. Every twentieth file by the hash
of its name is held out. Of the held-out lines of 40 or more characters
{corpus["heldout_lines_also_in_train"]:.1%} stand in the training text, too. SHA-256 over all documents:
`{corpus["sha256"]}`.

{_table(("kind", "train documents", "bytes", "held-out documents", "bytes"), rows)}

{how}
{facts["steps"]:,} steps, {facts["tokens"]:,} tokens, seed {facts["seed"]}, {facts["seconds"]:.0f} s on one
{facts["device"]} (torch {facts["torch"]}; bfloat16 products, float32 weights, rounded to bfloat16
at the end)."""


_SIZES = ("documents", "bytes")


def _text(name: str, figures: Mapping[str, Any]) -> str:
    rows = []
    for kind, entry in figures["text"].items():
        text = entry[name]
        rows.append(
            (
                kind,
                f"{text['tokens']:,}",
                f"{text['loss']:.3f}",
                f"{text['unigram_loss']:.3f}",
                f"{text['bits_per_byte']:.3f}",
                f"{text['unigram_bits_per_byte']:.3f}",
                f"{text['guessed']:.1%}",
            )
        )
    head = ("held-out text", "tokens", "nats a token", "unigram", "bits a byte", "unigram", "tokens guessed")
    return f"## Held-out text\n\n{_table(head, rows)}"


def _routing(name: str, figures: Mapping[str, Any]) -> str:
    routing = figures["routing"][name]
    costs = routing["layer_costs"]
    loads = [
        (
            str(entry["layer"]),
            f"{entry['least']:.2f}",
            f"{entry['most']:.2f}",
            f"{entry['entropy']:.3f}",
            str(entry["unused"]),
            f"{costs[entry['layer']]:+.2f}",
        )
        for entry in routing["loads"]
    ]
    head = ("layer", "least load", "largest load", "entropy", "unused experts", "loss without the layer")
    layers = [str(entry["layer"]) for entry in routing["loads"]]
    special = [
        (kind, *(f"{e['expert']} ({e['lift']:.1f}x, {e['share']:.0%})" for e in entries))
        for kind, entries in routing["specialists"].items()
    ]
    return f"""## Experts

A load of 1 is an even share; entropy 1 would be even loads. Without its dense layer 0 the loss rises by
{costs[0]:.2f} nats.

{_table(head, loads)}

The most over-represented expert for a kind of text or token: how many times more often it is chosen there
than everywhere, and the share of those tokens that choose it (an even share would be 12.5%).

{_table(("kind", *(f"layer {layer}" for layer in layers)), special)}"""


def _pair(name: str, figures: Mapping[str, Any]) -> list[str]:
    parts = [_together(figures), _codes(name, figures)]
    return [*parts, _texts(figures)] if name == "target" else parts


def _together(figures: Mapping[str, Any]) -> str:
    agreement = ", ".join(f"{kind} {entry['agreement']:.3f}" for kind, entry in figures["text"].items())
    runs = [
        (
            run,
            str(entry["requests"]),
            f"{entry['rows']:,}",
            f"{entry['accepted']:,} of {entry['drafted']:,}",
            f"{entry['accepted_share']:.1%}",
            f"{entry['repeated_8_grams']:.1%}",
        )
        for run, entry in figures["serving"]["runs"].items()
    ]
    overlap = [
        tuple(str(entry[key]) for key in ("layer", "overlap", "chance", "expected", "renamed"))
        for entry in figures["routing"]["overlap"]
    ]
    return f"""## Target and draft together

Positions of held-out text where both find the same token most likely: {agreement}.

In moeinspect's runtime, four proposed tokens a step, 32 new tokens a request unless said otherwise:

{_table(("prompts", "requests", "rows", "accepted", "share", "repeated 8-grams"), runs)}

The built-in prompts were drawn from held-out files so that greedy decoding does not repeat itself in their
first 32 tokens, with a seed picked by how the texts read; the random ones were not looked at.

Experts that both choose, of four, at the layers that both have. Frequency: what the two models' own loads
give by chance. Renamed: after the best renaming of the draft's experts (found on half of the tokens, counted
on the other).

{_table(("layer", "in common", "K * K / E", "frequency", "renamed"), overlap)}"""


def _codes(name: str, figures: Mapping[str, Any]) -> str:
    rows = [
        (code, str(entry["cells"]), str(entry["other_sets"]), f"{entry['largest_logit_difference']:.1e}")
        for code, entry in figures["codes"][name].items()
    ]
    head = ("compared with", "cells", "other expert sets", "largest difference of a logit")
    return f"""## The same model in other code

moeinspect's runtime on the built-in prompts, float32:

{_table(head, rows)}"""


def _texts(figures: Mapping[str, Any]) -> str:
    blocks = [
        f"{text['id']}, from {text['source']}:\n\n```\n{text['prompt']}\u23f5{text['greedy']}\n```\n\n"
        f"at temperature 1:\n\n```\n\u23f5{text['sampled']}\n```"
        for text in figures["serving"]["texts"]
    ]
    return "## What it writes\n\n\u23f5 marks where the model goes on.\n\n" + "\n\n".join(blocks)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), *(list(row) for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes the cards of a pair that was evaluated."""
    options = parser(__doc__)
    options.add_argument("--pair", type=Path, default=PAIR, help="the pair (the package's)")
    chosen = options.parse_args(arguments)
    figures = json.loads((chosen.pair / EVALUATION_FILE).read_text(encoding="utf-8"))
    write_cards(chosen.pair, figures, json.loads((chosen.data / MANIFEST_FILE).read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
