"""Every switch of a healthy run with its values, and configurations that cover all pairs of them."""

import random
from dataclasses import dataclass
from itertools import combinations, product
from math import prod
from pathlib import Path

from moeinspect.runtime.config import RunConfig

ORACLE = Path(__file__).parent / "data" / "oracle" / "checkpoints"
MODELS = (
    "builtin:tiny",
    "builtin:random",
    "builtin:random-hash",
    "builtin:random-shared",
    *(str(ORACLE / name) for name in ("qwen3_moe", "qwen3_moe-hubstyle", "qwen3_moe-variants")),
)

SWITCHES = {
    "model": MODELS,
    "dtype": ("float32", "bfloat16"),
    "sampling": ("greedy", "sampled", "filtered"),
    "overlap": (True, False),
    "workers": ("unified", "1x1", "2x1", "1x2", "2x2"),
    "ranks": ("1", "dp2", "tp2", "pp2", "dp3", "pp3", "dp2 tp2", "dp2 pp2", "tp2 pp2", "dp2 tp2 pp2"),
    "redundant_experts": (0, 5),
    "rebalance_interval": (8, 1, 3),
    "fused_shared_expert": (False, True),
    "transfer": ("shm", "gloo"),
    "draft": ("none", "own", "self", "ngram", "nextn", "eagle3"),
    "draft_topk": (1, 2, 3),
    "num_draft_tokens": (1, 4, 7),
    "adaptive_draft": (False, True),
    "prefix_cache": (True, False),
    "host_kv_slots": (0, 48, 4096),
    "chunked_prefill_size": (3, 16, 64),
    "max_running_requests": (1, 3, 16),
    "slots": ("ample", "tight"),
    "graph": (False, True),
    "backend": ("torch", "bypass"),
    "stream": (False, True),
    "requests": ("plain", "mixed"),
    "delays": (False, True),
}
"""Names of `RunConfig` where there is one; others (`workers`, `ranks`, `slots` ...) stand for several."""

MOST_PROCESSES = 8
FEW_PROCESSES = 4
"""More take seconds a run, so they are drawn now and then only."""

_TRIES = 150
"""Draws after which two values count as such that do not go together."""

_SAMPLING = {
    "greedy": {},
    "sampled": {"temperature": 1.0, "seed": 3},
    "filtered": {"temperature": 0.8, "top_p": 0.9, "top_k": 50, "seed": 4},
}


@dataclass(frozen=True)
class Choice:
    """One value for each switch."""

    values: tuple

    def __getitem__(self, name):
        return self.values[list(SWITCHES).index(name)]

    @property
    def pairs(self):
        """All pairs of values that it covers."""
        return set(combinations(zip(SWITCHES, self.values, strict=True), 2))

    @property
    def num_processes(self):
        return num_processes(self["workers"], self["ranks"])

    def __str__(self):
        default = {name: values[0] for name, values in SWITCHES.items()}
        shown = [f"model={Path(self['model']).name}"]
        shown += [f"{n}={self[n]}" for n in SWITCHES if n != "model" and self[n] != default[n]]
        return " ".join(shown)

    def config(self, tight_slots):
        """The run's configuration; `tight_slots` KV slots where slots are short."""
        model, draft = self["model"], self["draft"]
        own = f"{model}-draft"
        drafts = {"none": None, "own": own, "self": model, "ngram": "ngram"}
        heads = {head: f"builtin:random-{head}" for head in ("nextn", "eagle3")}
        prefill, decode = (1, 1) if self["workers"] == "unified" else map(int, self["workers"].split("x"))
        plain = {
            name: self[name]
            for name in SWITCHES
            if name in RunConfig.__dataclass_fields__ and name not in ("draft", "model")
        }
        return RunConfig(
            model=model,
            draft=(drafts | heads)[draft],
            **sizes(self["ranks"]),
            disagg=self["workers"] != "unified",
            prefill_workers=prefill,
            decode_workers=decode,
            num_kv_slots=tight_slots if self["slots"] == "tight" else None,
            **plain,
            **_SAMPLING[self["sampling"]],
        )


def sizes(ranks):
    """Such as `{"dp_size": 2, "pp_size": 2}` for "dp2 pp2"."""
    return {f"{word[:2]}_size": int(word[2:]) for word in ranks.split() if word != "1"}


def num_processes(workers, ranks):
    return prod(sizes(ranks).values()) * (1 if workers == "unified" else sum(map(int, workers.split("x"))))


def settled(values):
    """The choice with what does not go together put right."""
    v = dict(zip(SWITCHES, values, strict=True))
    builtin = v["model"].startswith("builtin:")
    if v["draft"] in ("nextn", "eagle3") and not v["model"].startswith("builtin:random"):
        v["draft"] = "self"
    if v["draft"] == "own" and not builtin:
        v["draft"] = "self"
    if v["draft"] == "none":
        v |= {"draft_topk": 1, "adaptive_draft": False, "num_draft_tokens": 4}
    if v["draft"] == "ngram":
        v["draft_topk"] = 1
    if v["draft_topk"] > v["num_draft_tokens"]:
        v["num_draft_tokens"] = 4
    if v["workers"] == "unified":
        v |= {"transfer": "shm"}
    if not v["prefix_cache"]:
        v["host_kv_slots"] = 0
    if v["redundant_experts"] == 0:
        v["rebalance_interval"] = 8
    if v["model"] != "builtin:random-shared":
        v["fused_shared_expert"] = False
    if num_processes(v["workers"], v["ranks"]) > MOST_PROCESSES:
        v["workers"] = "1x1"
    if num_processes(v["workers"], v["ranks"]) > MOST_PROCESSES:
        v |= {"workers": "unified", "transfer": "shm"}
    return Choice(tuple(v.values()))


def draw(rng):
    """A random choice that can run; most have few processes."""
    while True:
        choice = settled([rng.choice(values) for values in SWITCHES.values()])
        if choice.num_processes <= FEW_PROCESSES or rng.random() < 0.1:
            return choice


def pairwise(seed):
    """Choices that together cover every pair of values that can go together, each many new ones."""
    rng = random.Random(seed)
    order = [pair for pair in _all_pairs() if any(_keeps(pair, _with(pair, rng)) for _ in range(_TRIES))]
    rng.shuffle(order)
    missing = set(order)
    for pair in order:
        if pair not in missing:
            continue
        candidates = [_with(pair, rng) for _ in range(40)]
        best = max(candidates, key=lambda choice: _gain(choice, missing))
        missing -= best.pairs | {pair}
        yield best


def _all_pairs():
    entries = [[(name, value) for value in values] for name, values in SWITCHES.items()]
    return [pair for one, other in combinations(entries, 2) for pair in product(one, other)]


def _with(pair, rng):
    """A random choice with these two values, as far as they go together."""
    values = {name: rng.choice(options) for name, options in SWITCHES.items()} | dict(pair)
    return settled(list(values.values()))


def _keeps(pair, choice):
    return all(choice[name] == value for name, value in pair)


def _gain(choice, missing):
    """New pairs, those of many processes at half their worth."""
    return len(choice.pairs & missing) / (1 if choice.num_processes <= FEW_PROCESSES else 2)
