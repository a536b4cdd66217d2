"""Pairs of traces drawn from router logits, so that margins are true and rounding can be played."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from analysis.tracefactory import make_facts, make_trace
from numpy.typing import NDArray

from moeinspect.trace.schema import Origin, RequestRecord, Trace

Edit = Callable[[NDArray[Any]], None]


def logit_pair(
    *,
    noise: float = 0.0,
    cascade: float = 0.0,
    seed: int = 0,
    requests: int = 4,
    rows: int = 40,
    layers: int = 6,
    experts: int = 32,
    top_k: int = 4,
    dtype: str = "float32",
    machine_keys: tuple[str, str] = ("one", "two"),
    margins: bool = True,
    weights: bool = False,
    edit: Edit | None = None,
    **run: Any,
) -> tuple[Trace, Trace]:
    """A and its baseline B. A's logits are B's plus `noise`; `edit` changes A's ids [n, L, K] in place.

    With `cascade`, cells after a flip (later layers of the same and of later tokens) get that much more
    noise. Margins stand in B.
    """
    rng = np.random.default_rng(seed)
    facts = make_facts(layers, experts, top_k)
    records_a, records_b = [], []
    for number in range(requests):
        logits = rng.normal(size=(rows, layers, experts)).astype(np.float32)
        ids_b = _top(logits, top_k)
        noisy = logits + noise * rng.normal(size=logits.shape).astype(np.float32)
        if cascade:
            _let_flips_spread(noisy, ids_b, cascade, rng)
        ids_a = _top(noisy, top_k)
        if edit is not None:
            edit(ids_a)
        tokens = rng.integers(0, 1000, rows + 1)
        ranked = -np.sort(-logits, axis=2)
        margin = (ranked[..., top_k - 1] - ranked[..., top_k]).astype(np.float32)
        name = f"r{number}"
        records_a.append(record(name, tokens, ids_a, _weights(noisy, ids_a) if weights else None, None))
        records_b.append(
            record(
                name, tokens, ids_b, _weights(logits, ids_b) if weights else None, margin if margins else None
            )
        )
    config = {"dtype": dtype} | run.pop("run_config", {})
    a, b = (
        make_trace(records, facts, run={"machine_key": key, "run_config": config, **run}, path=path)
        for records, key, path in zip((records_a, records_b), machine_keys, ("a.h5", "b.h5"), strict=True)
    )
    return a, b


def _top(logits: NDArray[np.float32], top_k: int) -> NDArray[np.int64]:
    return np.argsort(-logits, axis=2, kind="stable")[..., :top_k]


def _weights(logits: NDArray[np.float32], ids: NDArray[np.int64]) -> NDArray[np.float32]:
    chosen = np.exp(np.take_along_axis(logits, ids, axis=2))
    return (chosen / chosen.sum(axis=2, keepdims=True)).astype(np.float32)


def _let_flips_spread(
    noisy: NDArray[np.float32], ids_b: NDArray[np.int64], cascade: float, rng: np.random.Generator
) -> None:
    lowest = noisy.shape[1]
    top_k = ids_b.shape[2]
    for row in range(len(noisy)):
        for layer in range(noisy.shape[1]):
            if layer > lowest:
                noisy[row, layer] += cascade * rng.normal(size=noisy.shape[2])
            if set(np.argsort(-noisy[row, layer], kind="stable")[:top_k]) != set(ids_b[row, layer]):
                lowest = min(lowest, layer)


def record(name: str, tokens: Any, ids: Any, weights: Any, margin: Any) -> RequestRecord:
    n, prompt_len = len(ids), len(ids) // 2
    return RequestRecord(
        id=name,
        prompt_ids=tokens[:prompt_len].astype(np.int32),
        output_ids=tokens[prompt_len:].astype(np.int32),
        expert_ids=ids,
        validity=np.zeros(n, np.uint8),
        origin=np.where(np.arange(n) < prompt_len, Origin.PREFILL, Origin.DECODE).astype(np.uint8),
        worker=np.zeros(n, np.uint16),
        step=np.maximum(0, np.arange(n) - prompt_len + 1).astype(np.int32),
        slot=np.arange(n, dtype=np.int32),
        row_weight_version=np.zeros(n, np.uint16),
        weights=weights,
        margin=margin,
    )
