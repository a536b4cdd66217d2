"""Runs of a deep model whose router logits carry the noise of bf16, and faults put into one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from analysis.compare.logitpairs import record
from analysis.tracefactory import make_facts, make_trace
from numpy.typing import NDArray

from moeinspect.trace.schema import Trace

Edit = Callable[[NDArray[Any]], None]
"""Changes the ids [requests, rows, L, K] of a run in place."""


class NoisyModel:
    """The same requests run again and again: noise grows with depth and differs from token to token.

    `noise` is its size at the last layer, in standard deviations of the logits: 0.02 turns over some 3 % of
    the sets there.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        noise: float = 0.02,
        requests: int = 6,
        rows: int = 40,
        layers: int = 48,
        experts: int = 32,
        top_k: int = 4,
    ) -> None:
        self._rng = np.random.default_rng(seed)
        self._facts = make_facts(layers, experts, top_k)
        self._logits = self._rng.normal(size=(requests, rows, layers, experts)).astype(np.float32)
        self._tokens = self._rng.integers(0, 1000, (requests, rows + 1))
        self._noise = noise * np.linspace(0.1, 1.0, layers, dtype=np.float32)[:, None]

    @property
    def rng(self) -> np.random.Generator:
        """Where the randomness of an edit may come from."""
        return self._rng

    def run(
        self, path: str, edit: Edit | None = None, *, margins: bool = False, diverge: float = 0.0, **run: Any
    ) -> Trace:
        """One run; `diverge` is the share of output tokens at which a request goes on with other tokens."""
        rng, shape, K = self._rng, self._logits.shape, self._facts.top_k
        token_noise = rng.lognormal(0.0, 0.4, size=(*shape[:2], 1, 1)).astype(np.float32)
        logits = self._logits + self._noise * token_noise * rng.standard_normal(shape, dtype=np.float32)
        top = np.argpartition(-logits, K, axis=3)[..., : K + 1]
        values = np.take_along_axis(logits, top, axis=3)
        order = np.argsort(-values, axis=3)
        ids = np.take_along_axis(top, order, axis=3)
        values = np.take_along_axis(values, order, axis=3)
        chosen = ids[..., :K].copy()
        if edit is not None:
            edit(chosen)
        margin = values[..., K - 1] - values[..., K]
        records = []
        for number, tokens in enumerate(self._tokens):
            tokens = tokens.copy()
            half = shape[1] // 2
            part = np.flatnonzero(rng.random(len(tokens) - half) < diverge)
            if len(part):
                tokens[half + part[0] :] += 1
            records.append(
                record(f"r{number}", tokens, chosen[number], None, margin[number] if margins else None)
            )
        run = {"deterministic": False, "run_config": {"dtype": "bfloat16"}} | run
        return make_trace(records, self._facts, run=run, path=path)

    def random_ids(self, *shape: int) -> NDArray[np.int64]:
        """Choices [..., K] of a router that has nothing to do with this model's."""
        drawn = self._rng.random((*shape, self._facts.num_experts))
        return np.argsort(drawn, axis=-1)[..., : self._facts.top_k]
