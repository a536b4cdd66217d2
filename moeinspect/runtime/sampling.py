"""Sampling as a function of (request seed, output position, target logits) alone.

A token is the largest of logit / temperature + Gumbel noise, which draws from the softmax. The noise is
counter-based (SplitMix64, Steele et al. 2014), so a token does not depend on batch, schedule or on what was
sampled before. The draft adds the same noise to its own logits, which makes it agree with the target often
wherever the two distributions are close.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn; temperature 0 is greedy, `top_k` 0 keeps every token."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0


def derive_seed(run_seed: int, request_id: str) -> int:
    """Seed of a request that names none: 64 bits of SHA-256 over the run's seed and the request's id."""
    digest = hashlib.sha256(f"{run_seed}\0{request_id}".encode()).digest()
    return int.from_bytes(digest[:8], "little")


def sample_seed(request_seed: int, sample: int) -> int:
    """Seed of one of several samples of a request; the first one has the request's own."""
    return derive_seed(request_seed, f"\0sample {sample}") if sample else request_seed


def gumbel(seed: int, position: int, num_tokens: int) -> NDArray[np.float64]:
    """Standard Gumbel noise for each token id [num_tokens] at one output position of one request."""
    key = _mix(np.array([seed & _MASK], dtype=np.uint64))
    counter = _mix(key + np.uint64(position & _MASK))
    bits = _mix(counter + np.arange(num_tokens).astype(np.uint64)) >> np.uint64(11)
    # The middle of each of 2^53 steps, so that no logarithm is taken of 0 or 1.
    return np.asarray(-np.log(-np.log((bits.astype(np.float64) + 0.5) * 2.0**-53)))


def sample(
    logits: torch.Tensor, seeds: Sequence[int], positions: Sequence[int], params: SamplingParams
) -> torch.Tensor:
    """Token ids [n] int64 from logits [n, V] float32, for these request seeds and output positions."""
    return torch.argmax(perturbed(logits, seeds, positions, params), dim=-1)


def perturbed(
    logits: torch.Tensor, seeds: Sequence[int], positions: Sequence[int], params: SamplingParams
) -> torch.Tensor:
    """Filtered logits / temperature + noise [n, V] float64, whose largest is sampled; logits if greedy.

    The runners-up are what would be sampled if the largest were not there, which is what a tree of drafts
    branches by.
    """
    if params.temperature == 0.0 or logits.shape[0] == 0:
        return logits
    rows = logits.double().numpy() / params.temperature
    noisy = [
        _filtered(row, params) + gumbel(seed, position, len(row))
        for row, seed, position in zip(rows, seeds, positions, strict=True)
    ]
    return torch.from_numpy(np.stack(noisy))


def _filtered(logits: NDArray[np.float64], params: SamplingParams) -> NDArray[np.float64]:
    """The logits with -inf where top-k or top-p drops a token; ties at the border keep the lowest ids."""
    if params.top_k <= 0 and params.top_p >= 1.0:
        return logits
    order = np.argsort(-logits, kind="stable")
    kept = order[: params.top_k] if params.top_k > 0 else order
    if params.top_p < 1.0:
        cumulative = np.cumsum(np.exp(logits[kept] - logits[kept[0]]))
        # The smallest set whose mass reaches top_p: keep a token while the mass before it is below.
        kept = kept[: int(np.searchsorted(cumulative, params.top_p * cumulative[-1], side="left")) + 1]
    filtered = np.full_like(logits, -np.inf)
    filtered[kept] = logits[kept]
    return filtered


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
