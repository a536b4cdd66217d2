"""Where a model's tensors come from, under their Hugging Face names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor's shape, its stored dtype in safetensors' spelling (`BF16`), and the file that holds it."""

    shape: tuple[int, ...]
    dtype: str
    file: str


class WeightSource(Protocol):
    """Named tensors: their facts at once, their values one by one."""

    name: str

    @property
    def infos(self) -> Mapping[str, TensorInfo]:
        """All tensors by name."""

    def tensor(self, name: str) -> torch.Tensor:
        """The values; may share memory with a mapped file."""


_FLOATS = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.float64: "F64"}
_INTEGERS = {torch.int32: "I32", torch.int64: "I64"}
_DTYPE_NAMES = _FLOATS | _INTEGERS
FLOAT_DTYPES = frozenset(_FLOATS.values())
INTEGER_DTYPES = frozenset(_INTEGERS.values())
"""Dtypes of tables."""


class MemoryWeights:
    """Tensors held in memory."""

    def __init__(self, name: str, tensors: Mapping[str, torch.Tensor]) -> None:
        self.name = name
        self._tensors = tensors
        self.infos: Mapping[str, TensorInfo] = {
            key: TensorInfo(tuple(t.shape), _DTYPE_NAMES[t.dtype], name) for key, t in tensors.items()
        }

    def tensor(self, name: str) -> torch.Tensor:
        """The values of one tensor."""
        return self._tensors[name]
