"""64-bit hashes of token prefixes and of rows; unequal things collide with a chance of about 2**-64.

A finding that rests on equal hashes needs several of them in a row, so one collision cannot make one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

GOLDEN = 0x9E3779B97F4A7C15
CHUNK_BYTES = 1 << 24


def mix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64: spreads each bit over all 64."""
    mixed = values ^ (values >> np.uint64(30))
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def prefix_hashes(
    tokens: NDArray[np.integer[Any]], position: NDArray[np.int64], start: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Hash of all tokens of the sequence up to and including each one [T].

    Several sequences may stand one after another: `position` [T] counts inside a sequence, `start` [T] is
    the index in `tokens` of its first token. Each (position, token) becomes one pseudo-random number and a
    prefix is the sum of its own, modulo 2**64, so the whole is one cumulative sum.
    """
    key = (position.astype(np.uint64) << np.uint64(32)) ^ (tokens.astype(np.int64).astype(np.uint64))
    total = np.cumsum(mix64(key * np.uint64(GOLDEN) + np.uint64(1)), dtype=np.uint64)
    before = np.concatenate([np.zeros(1, np.uint64), total])
    hashes: NDArray[np.uint64] = total - before[start]
    return hashes


def row_hashes(ids: NDArray[Any], layers: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Hash of the ids of the chosen layers of each row [R], from ids [R, M, K]; slot order counts."""
    R, M, K = ids.shape
    hashes = np.zeros(R, dtype=np.uint64)
    row_bytes = len(layers) * K * ids.dtype.itemsize
    words = -(-row_bytes // 8)
    if not words:
        return hashes
    salt = mix64(np.arange(1, words + 1, dtype=np.uint64) * np.uint64(GOLDEN))
    chunk = max(1, CHUNK_BYTES // max(1, 8 * words))
    for first in range(0, R, chunk):
        block = ids[first : first + chunk]
        block = block if len(layers) == M else block[:, layers]
        raw = np.ascontiguousarray(block).reshape(len(block), -1).view(np.uint8)
        if row_bytes % 8:
            padded = np.zeros((len(block), words * 8), dtype=np.uint8)
            padded[:, :row_bytes] = raw
            raw = padded
        hashes[first : first + chunk] = mix64(raw.view(np.uint64) + salt).sum(axis=1, dtype=np.uint64)
    return mix64(hashes)
