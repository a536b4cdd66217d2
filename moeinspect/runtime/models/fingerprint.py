"""A fingerprint of what a model computes: its configuration and its weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

import torch

from moeinspect.runtime.models.config import ModelConfig
from moeinspect.runtime.models.weights import WeightSource

FULL_HASH_LIMIT = 256 * 2**20
"""Up to this many bytes of weights all are hashed; beyond, samples of each tensor."""

_BLOCK = 4096
_BLOCKS = 16


def fingerprint(config: ModelConfig, source: WeightSource, names: Iterable[str]) -> str:
    """SHA-256 in hex over the configuration's essentials and each tensor's name, shape, dtype and bytes.

    It does not depend on sharding, on the spelling of `config.json` or on the dtype of the run. Above
    `FULL_HASH_LIMIT` bytes each tensor contributes 16 evenly spaced blocks of 4 KiB, first and last among
    them: enough to tell models and training steps apart, not to find a single changed weight.
    """
    digest = hashlib.sha256(json.dumps(config.essentials, sort_keys=True).encode())
    tensors = sorted(names)
    sampled = sum(_num_bytes(source, name) for name in tensors) > FULL_HASH_LIMIT
    for name in tensors:
        info = source.infos[name]
        digest.update(f"\n{name} {list(info.shape)} {info.dtype}\n".encode())
        data = source.tensor(name).contiguous().view(-1).view(torch.uint8)
        for block in _samples(data) if sampled else (data,):
            digest.update(block.numpy().data)
    return digest.hexdigest()


def _num_bytes(source: WeightSource, name: str) -> int:
    info = source.infos[name]
    return torch.Size(info.shape).numel() * (int(info.dtype.lstrip("BFI")) // 8)


def _samples(data: torch.Tensor) -> list[torch.Tensor]:
    if data.shape[0] <= _BLOCK * _BLOCKS:
        return [data]
    last = data.shape[0] - _BLOCK
    starts = [last * i // (_BLOCKS - 1) for i in range(_BLOCKS)]
    return [data[start : start + _BLOCK] for start in starts]
