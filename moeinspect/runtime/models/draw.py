"""Weights drawn from a key, the same on every machine."""

from __future__ import annotations

import math
import zlib

import numpy as np
import torch

_TERMS = 8
_MEAN = _TERMS * (2**16 - 1) / 2
_STD = math.sqrt(_TERMS * (2.0**32 - 1) / 12)


def draw_normal(key: str, shape: tuple[int, ...], std: float, mean: float = 0.0) -> torch.Tensor:
    """A bfloat16 tensor of nearly normal numbers, seeded by the CRC-32 of `key`.

    Each number is a scaled sum of eight 16-bit integers of the PCG64 bit stream (which numpy keeps stable):
    integer sums and single float64 operations give the same bits on every processor, which logarithms and
    cosines of a true normal draw would not.
    """
    count = math.prod(shape)
    raw = np.random.PCG64(zlib.crc32(key.encode())).random_raw(count * _TERMS // 4)
    sums = raw.astype("<u8").view("<u2").reshape(count, _TERMS).sum(axis=1, dtype=np.int64)
    values = (sums - _MEAN) * (std / _STD) + mean
    return torch.from_numpy(values).reshape(shape).to(torch.bfloat16)


def draw_choices(key: str, rows: int, count: int, among: int) -> torch.Tensor:
    """Distinct integers [rows, count] int64 below `among` in each row, seeded by the CRC-32 of `key`."""
    raw = np.random.PCG64(zlib.crc32(key.encode())).random_raw(rows * among)
    order = np.argsort(raw.reshape(rows, among), axis=1, kind="stable")
    return torch.from_numpy(np.ascontiguousarray(order[:, :count]).astype(np.int64))
