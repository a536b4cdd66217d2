"""Sampling as a function of (request seed, output position, target logits) alone.

Random numbers are counter-based (SplitMix64, Steele et al. 2014), so a token does not depend on batch,
schedule or on what was sampled before. The draft samples with the same numbers, which makes it agree with
the target as often as its distribution allows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


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


def uniform(seed: int, position: int) -> float:
    """The random number in [0, 1) of one output position of one request."""
    return (_mix((_mix(seed & _MASK) + (position + 1) * _GOLDEN) & _MASK) >> 11) * 2.0**-53


def sample(
    logits: torch.Tensor, seeds: Sequence[int], positions: Sequence[int], params: SamplingParams
) -> torch.Tensor:
    """Token ids [n] int64 from logits [n, V] float32, for these request seeds and output positions."""
    if params.temperature == 0.0:
        return torch.argmax(logits, dim=-1)
    rows = logits.double().numpy()
    picks = [
        _sample_row(row, uniform(seed, position), params)
        for row, seed, position in zip(rows, seeds, positions, strict=True)
    ]
    return torch.tensor(picks, dtype=torch.int64)


def _sample_row(logits: NDArray[np.float64], u: float, params: SamplingParams) -> int:
    order = np.argsort(-logits, kind="stable")
    scaled = logits[order] / params.temperature
    p = np.exp(scaled - scaled[0])
    if params.top_k > 0:
        p = p[: params.top_k]
    cumulative = np.cumsum(p)
    if params.top_p < 1.0:
        # The smallest set whose mass reaches top_p: keep a token while the mass before it is below.
        kept = int(np.searchsorted(cumulative, params.top_p * cumulative[-1], side="left")) + 1
        cumulative = cumulative[:kept]
    pick = int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))
    return int(order[min(pick, len(cumulative) - 1)])


def _mix(x: int) -> int:
    x = (x + _GOLDEN) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
