"""Embedded models after a step of training: their own weights, a little moved."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from moeinspect.runtime.models.draw import draw_normal
from moeinspect.runtime.models.weights import TensorInfo, WeightSource

SUFFIX = "-updated"
"""`builtin:NAME-updated` is `builtin:NAME` after a weight update."""

_STEP = 0.1
"""Size of the move, as a share of a tensor's own spread: enough to change the routing of many tokens."""


class UpdatedWeights:
    """The tensors of `source`, each moved by normal noise that its name seeds; tables stay as they are."""

    def __init__(self, source: WeightSource, name: str) -> None:
        self.name = name
        self._source = source

    @property
    def infos(self) -> Mapping[str, TensorInfo]:
        """All tensors by name."""
        return self._source.infos

    def tensor(self, name: str) -> torch.Tensor:
        """The values of one tensor."""
        values = self._source.tensor(name)
        if ".mlp." not in name or not values.is_floating_point():
            return values
        spread = float(values.float().std())
        noise = draw_normal(f"updated/{name}", tuple(values.shape), _STEP * spread)
        return (values.float() + noise.float()).to(values.dtype)
