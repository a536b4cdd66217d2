"""Keys and values by KV slot."""

from __future__ import annotations

from dataclasses import dataclass

import torch

DUMMY_SLOT = 0
"""Slot that belongs to nobody; unallocated table entries point at it. It always holds zeros."""


@dataclass(frozen=True, slots=True)
class KVShape:
    """Sizes of the buffers of one model, or of the part of it that a rank has.

    `num_layers` layers from `first_layer` on, and `num_kv_heads` heads of each.
    """

    num_layers: int
    num_slots: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    first_layer: int = 0

    @property
    def dims(self) -> tuple[int, ...]:
        """Layer, keys or values, slot, head, channel."""
        return (self.num_layers, 2, self.num_slots, self.num_kv_heads, self.head_dim)

    @property
    def num_bytes(self) -> int:
        """Size of the whole buffer."""
        return int(torch.Size(self.dims).numel()) * self.dtype.itemsize


class KVCache:
    """One tensor [layers, 2, slots, kv_heads, head_dim]; layers are called by their index in the model.

    `storage` may be given, so that the buffer can lie in memory shared with another process.
    """

    def __init__(self, shape: KVShape, storage: torch.Tensor | None = None) -> None:
        self.shape = shape
        self.data = (
            torch.zeros(shape.dims, dtype=shape.dtype) if storage is None else storage.view(shape.dims)
        )

    def keys(self, layer: int) -> torch.Tensor:
        """Keys of one layer [slots, kv_heads, head_dim]."""
        return self.data[layer - self.shape.first_layer, 0]

    def values(self, layer: int) -> torch.Tensor:
        """Values of one layer [slots, kv_heads, head_dim]."""
        return self.data[layer - self.shape.first_layer, 1]

    def store(self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Writes keys and values [n, kv_heads, head_dim] under `slots` [n]."""
        self.keys(layer)[slots] = keys
        self.values(layer)[slots] = values

    def move(self, from_slots: torch.Tensor, to_slots: torch.Tensor) -> None:
        """Copies keys and values of slots [n] to other slots [n], all of them read before any is written."""
        self.data[:, :, to_slots] = self.data[:, :, from_slots]
