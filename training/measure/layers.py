"""What a model loses when one of its layers is left out: no layer should be dead."""

from __future__ import annotations

import torch

from training.measure.observe import observe
from training.model import Model


def layer_costs(model: Model, windows: torch.Tensor) -> list[float]:
    """For each layer the rise of the mean loss in nats a token over `windows` [n, T] without it."""
    whole = observe(model, windows).loss
    return [
        round(observe(model, windows, skip=layer).loss - whole, 3) for layer in range(model.shape.num_layers)
    ]
