"""Measures an exported pair on held-out text and writes `evaluation.json` beside it.

Everything is computed from the exported bfloat16 weights, in float32 on the CPU. The comparison with
transformers is left out where it is not installed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from training.card import EVALUATION_FILE
from training.corpus import KINDS
from training.imported import import_model
from training.loop import read_facts
from training.measure.layers import layer_costs
from training.measure.loads import expert_loads, specialists, token_kinds
from training.measure.observe import Observation, joined, observe
from training.measure.overlap import overlaps
from training.measure.same import differences, runtime_results, training_results, transformers_results
from training.measure.served import Served, serve, served_figures
from training.measure.text import text_figures, unigram_losses
from training.model import Model
from training.options import PAIR, parser
from training.prompts import NUM_NEW, PROMPTS_FILE, Prompt
from training.streams import heldout_windows, read_stream
from training.tokenizer import read_tokenizer, token_bytes

ALL = 1 << 30
LONG = 128
RANDOM_PROMPT = 32
RANDOM_PROMPTS = 16
COST_WINDOWS = 16


@dataclass(frozen=True, slots=True)
class Subject:
    """The pair under test and the held-out windows [n, T] of each kind of text."""

    data: Path
    pair: Path
    models: Mapping[str, Model]
    windows: Mapping[str, torch.Tensor]

    @property
    def layers(self) -> tuple[int, ...]:
        """The MoE layers that both models have."""
        return self.models["draft"].shape.moe_layers


def predictions(subject: Subject, seen: Mapping[str, Mapping[str, Observation]]) -> dict[str, Any]:
    """Loss of both models and their agreement, by kind of text and over all of it."""
    backend = read_tokenizer(subject.data)
    train = torch.cat([read_stream(subject.data, "train", kind, "cpu") for kind in KINDS])
    unigram = unigram_losses(train, backend.get_vocab_size())
    bytes_of = token_bytes(backend)
    figures: dict[str, Any] = {}
    for kind in (*KINDS, "all"):
        target, draft = seen["target"][kind], seen["draft"][kind]
        figures[kind] = {
            "target": text_figures(target, unigram, bytes_of),
            "draft": text_figures(draft, unigram, bytes_of),
            "agreement": round(float((target.top == draft.top).float().mean()), 4),
        }
    return figures


def routing(subject: Subject, seen: Mapping[str, Mapping[str, Observation]]) -> dict[str, Any]:
    """Loads, specialists and costs of layers of both models, and how their choices overlap."""
    kinds = token_kinds(read_tokenizer(subject.data))
    costs = torch.cat([windows[:COST_WINDOWS] for windows in subject.windows.values()])
    figures: dict[str, Any] = {}
    for name, model in subject.models.items():
        layers = model.shape.moe_layers
        figures[name] = {
            "loads": expert_loads(seen[name]["all"], layers),
            "specialists": specialists({kind: seen[name][kind] for kind in KINDS}, kinds, layers),
            "layer_costs": layer_costs(model, costs),
        }
    rows = [subject.models["target"].shape.moe_layers.index(layer) for layer in subject.layers]
    chosen = seen["target"]["all"].chosen[rows], seen["draft"]["all"].chosen
    figures["overlap"] = overlaps(*chosen, subject.layers, subject.models["target"].shape.top_k)
    return figures


def random_prompts(subject: Subject) -> list[Prompt]:
    """Pieces of held-out text taken evenly, without a look at what they say."""
    prompts = []
    for kind in KINDS:
        rows = heldout_windows(subject.data, kind, RANDOM_PROMPT, RANDOM_PROMPTS, "cpu")
        prompts += [Prompt(f"{kind}-{i}", "", row.tolist(), kind) for i, row in enumerate(rows)]
    return prompts


def serving(subject: Subject, prompts: Sequence[Prompt]) -> dict[str, Any]:
    """Acceptance and repetition in the package's runtime, and the texts of the built-in prompts."""
    runs = {
        "built-in, greedy": (prompts, NUM_NEW, 0.0),
        "built-in, temperature 1": (prompts, NUM_NEW, 1.0),
        f"built-in, greedy, {LONG} tokens": (prompts, LONG, 0.0),
        "random, greedy": (random_prompts(subject), NUM_NEW, 0.0),
        "random, temperature 1": (random_prompts(subject), NUM_NEW, 1.0),
    }
    served: dict[str, Served] = {name: serve(subject.pair, *run) for name, run in runs.items()}
    greedy, sampled = served["built-in, greedy"].texts, served["built-in, temperature 1"].texts
    texts = [
        {"id": p.id, "prompt": p.text, "greedy": a, "sampled": b, "source": p.source}
        for p, a, b in zip(prompts, greedy, sampled, strict=True)
    ]
    return {"runs": {name: served_figures(run) for name, run in served.items()}, "texts": texts}


def agreement_of_codes(subject: Subject, prompts: Sequence[Prompt]) -> dict[str, Any]:
    """The package's runtime against the training code and against transformers on the built-in prompts."""
    rows = [prompt.ids for prompt in prompts]
    figures: dict[str, Any] = {}
    for name, model in subject.models.items():
        ours = runtime_results(subject.pair / name, rows)
        figures[name] = {"training code": differences(ours, training_results(model, rows))}
        theirs = transformers_results(subject.pair / name, rows)
        if theirs is not None:
            figures[name]["transformers"] = differences(ours, theirs)
    return figures


def evaluate(data: Path, pair: Path, count: int = ALL, length: int = 512) -> dict[str, Any]:
    """All figures; at most `count` windows of `length` tokens of each kind of text."""
    models = {name: import_model(pair / name) for name in ("target", "draft")}
    windows = {kind: heldout_windows(data, kind, length, count, "cpu") for kind in KINDS}
    subject = Subject(data, pair, models, windows)
    prompts = [Prompt(**entry) for entry in json.loads((pair / PROMPTS_FILE).read_text(encoding="utf-8"))]
    seen: dict[str, dict[str, Observation]] = {}
    for name, model in models.items():
        seen[name] = {kind: observe(model, windows[kind]) for kind in KINDS}
        seen[name]["all"] = joined([seen[name][kind] for kind in KINDS])
    return {
        "training": {name: read_facts(data / f"{name}.pt") for name in models},
        "parameters": {name: sum(p.numel() for p in m.parameters()) for name, m in models.items()},
        "text": predictions(subject, seen),
        "routing": routing(subject, seen),
        "serving": serving(subject, prompts),
        "codes": agreement_of_codes(subject, prompts),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, writes the file, and prints the figures without texts."""
    options = parser(__doc__)
    options.add_argument("--pair", type=Path, default=PAIR, help="the pair to measure (the package's)")
    options.add_argument("--windows", type=int, default=ALL, help="of each kind of text (all)")
    options.add_argument("--length", type=int, default=512, help="tokens of a window (%(default)s)")
    options.add_argument("--threads", type=int, default=1, help="CPU threads (%(default)s)")
    chosen = options.parse_args(arguments)
    torch.set_num_threads(chosen.threads)
    figures = evaluate(chosen.data, chosen.pair, chosen.windows, chosen.length)
    text = json.dumps(figures, indent=1, allow_nan=False)
    (chosen.pair / EVALUATION_FILE).write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(figures | {"serving": figures["serving"]["runs"]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
