"""Several tensors of the same rows as one message."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def pack_rows(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """`tensors` [n, ...] side by side as bytes [n, sum of their bytes a row]."""
    return torch.cat([_row_bytes(tensor) for tensor in tensors], dim=1)


def unpack_rows(packed: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors of `pack_rows` with whatever rows `packed` has; `like` [*, ...] give shapes and dtypes."""
    widths = [tensor.shape[1:].numel() * tensor.element_size() for tensor in like]
    parts = zip(torch.split(packed, widths, dim=1), like, strict=True)
    return [_copied(part).view(one.dtype).view(-1, *one.shape[1:]) for part, one in parts]


def _row_bytes(x: torch.Tensor) -> torch.Tensor:
    width = x.shape[1:].numel() * x.element_size()
    return x.contiguous().view(-1).view(torch.uint8).view(-1, width)


def _copied(part: torch.Tensor) -> torch.Tensor:
    """In memory of its own, where any dtype may begin; a part of one row would count as contiguous."""
    return part.clone(memory_format=torch.contiguous_format)
