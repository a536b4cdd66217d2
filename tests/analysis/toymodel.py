"""A toy MoE that routes as small real models do: unevenly, and much alike for like tokens and contexts.

Tokens fall into classes, the state is the token's embedding plus a moving average of those before it, and
each layer adds to it. So rows of different tokens may be nearly or wholly equal, layers agree on which,
loops give equal rows, and a text gives nearly the same rows at another place. All of that is healthy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from analysis.tracefactory import make_facts, make_record, make_trace
from numpy.typing import NDArray

from moeinspect.trace.schema import ModelFacts, RequestRecord, Trace


@dataclass(frozen=True)
class ToyStyle:
    """How a toy model uses its experts."""

    vocab: int = 200
    classes: int = 20
    class_noise: float = 0.3
    """How far tokens of one class lie apart; 0: they are the same to the model."""
    context: float = 0.5
    """Weight of the tokens before."""
    memory: float = 0.8
    """How slowly they fade."""
    skew: float = 1.0
    """Spread of the experts' popularity."""
    common: float = 0.0
    """Length of a part that all embeddings share."""


class ToyModel:
    """Weights drawn from a seed."""

    def __init__(self, facts: ModelFacts, style: ToyStyle, seed: int, dim: int = 24) -> None:
        rng = np.random.default_rng(seed)
        self.facts, self.style = facts, style
        centers = rng.normal(size=(style.classes, dim))
        self.embedding = centers[rng.integers(0, style.classes, style.vocab)]
        self.embedding = self.embedding + style.class_noise * rng.normal(size=(style.vocab, dim))
        self.embedding += style.common * rng.normal(size=dim)
        M, E = len(facts.moe_layers), facts.num_experts
        self.mixers = 0.5 * rng.normal(size=(M, dim, dim)) / np.sqrt(dim)
        self.routers = rng.normal(size=(M, dim, E)) / np.sqrt(dim)
        self.popularity = style.skew * rng.normal(size=(M, E))
        self.head = rng.normal(size=(dim, style.vocab))

    def decode(self, prompt: Sequence[int], new_tokens: int) -> tuple[list[int], NDArray[np.int64]]:
        """Greedy output ids and the rows [P + new_tokens - 1, M, K]."""
        tokens, states = list(prompt), []
        before = np.zeros(self.embedding.shape[1])
        for position in range(len(prompt) + new_tokens - 1):
            embedded = self.embedding[tokens[position]]
            states.append(embedded + self.style.context * before)
            before = self.style.memory * before + (1 - self.style.memory) * embedded
            if position >= len(prompt) - 1:
                _, last = self._layers(states[-1][None])
                tokens.append(int(np.argmax(last[0] @ self.head)))
        return tokens[len(prompt) :], self._layers(np.asarray(states))[0]

    def _layers(self, state: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        ids = []
        for mixer, router, popularity in zip(self.mixers, self.routers, self.popularity, strict=True):
            normed = state / np.sqrt((state**2).mean(axis=1, keepdims=True) + 1e-6)
            scores = normed @ router + popularity
            ids.append(np.argsort(-scores, axis=1, kind="stable")[:, : self.facts.top_k])
            state = state + np.tanh(normed @ mixer)
        return np.stack(ids, axis=1), state


def toy_trace(
    facts: ModelFacts, style: ToyStyle, seed: int, requests: int = 8, *, reuse_slots: bool = False
) -> Trace:
    """A healthy trace of traffic that looks suspicious: shared prefixes, shifted texts, templates, loops."""
    rng = np.random.default_rng(seed)
    model = ToyModel(facts, style, seed)
    shared, template = rng.integers(0, style.vocab, (2, 30))
    records, slot = [], 0
    for number in range(requests):
        prompt = _prompt(rng, style, shared, template)
        output, ids = model.decode(prompt, int(rng.integers(1, 50)))
        records.append(_record(f"r{number}", prompt, output, ids, slot, number))
        slot += int(rng.integers(0, 20)) if reuse_slots else len(ids)
    return make_trace(records, facts)


def _prompt(
    rng: np.random.Generator, style: ToyStyle, shared: NDArray[np.int64], template: NDArray[np.int64]
) -> list[int]:
    own = rng.integers(0, style.vocab, int(rng.integers(5, 60))).tolist()
    kind = int(rng.integers(0, 5))
    if kind == 0:  # the same beginning as others
        return [*shared.tolist(), *own]
    if kind == 1:  # the same text, one place later
        return [own[0], *shared.tolist(), *own]
    if kind == 2:  # a template with other words in some places
        filled = np.where(
            rng.random(len(template)) < 0.2, rng.integers(0, style.vocab, len(template)), template
        )
        return [int(token) for token in filled]
    if kind == 3:  # a few tokens again and again
        return (own[:5] * 10)[: int(rng.integers(10, 50))]
    return own


def _record(
    name: str, prompt: list[int], output: list[int], ids: NDArray[np.int64], slot: int, number: int
) -> RequestRecord:
    n = len(ids)
    plain = make_record(name, prompt, output, make_facts(1, 2, 1))
    return replace(
        plain,
        expert_ids=ids,
        slot=(slot + np.arange(n)).astype(np.int32),
        step=(plain.step + 100 * number).astype(np.int32),
    )
