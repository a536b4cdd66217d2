"""One pass of a model over windows of text, and what the measurements need of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from training.model import Model

_WINDOWS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Observation:
    """Of N tokens of n windows: `tokens` [N], the loss at each [N] in nats (NaN at the first of a window),
    the most likely next token `top` [N], and `chosen` experts [layers, N, E] as a mask."""

    tokens: torch.Tensor
    losses: torch.Tensor
    top: torch.Tensor
    chosen: torch.Tensor

    @property
    def loss(self) -> float:
        """Mean loss in nats a token."""
        return float(self.losses.nanmean())


def joined(parts: Sequence[Observation]) -> Observation:
    """Several observations of one model as one."""
    return Observation(
        torch.cat([part.tokens for part in parts]),
        torch.cat([part.losses for part in parts]),
        torch.cat([part.top for part in parts]),
        torch.cat([part.chosen for part in parts], dim=1),
    )


@torch.no_grad()
def observe(model: Model, windows: torch.Tensor, skip: int | None = None) -> Observation:
    """Runs `model`, without its layer `skip`, over windows [n, T]; results are on the CPU."""
    parts = list(_parts(model, windows, skip))
    losses, top, chosen = zip(*parts, strict=True)
    return Observation(windows.flatten().cpu(), torch.cat(losses), torch.cat(top), torch.cat(chosen, dim=1))


def _parts(
    model: Model, windows: torch.Tensor, skip: int | None
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    for start in range(0, windows.shape[0], _WINDOWS_AT_ONCE):
        ids = windows[start : start + _WINDOWS_AT_ONCE]
        logits, routings = model(ids, skip)
        losses = torch.full(ids.shape, torch.nan)
        losses[:, 1:] = F.cross_entropy(logits[:, :-1].mT, ids[:, 1:], reduction="none").cpu()
        none = torch.zeros(0, ids.numel(), model.shape.num_experts, dtype=torch.bool)
        chosen = torch.cat([none, *(routing.chosen[None].cpu() for routing in routings)])
        yield losses.flatten(), logits.argmax(dim=-1).flatten().cpu(), chosen
