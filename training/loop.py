"""The optimizer loop that target and draft share."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import torch

from training.model import Model
from training.shapes import ModelShape

Losses = dict[str, torch.Tensor]
_COMPILE_MODES = {"on": "default", "graphs": "reduce-overhead"}
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Schedule:
    """Warm-up, then half a cosine down to `floor` of the peak rate."""

    steps: int
    peak: float
    warmup: int
    floor: float = 0.02

    def rate(self, step: int) -> float:
        """Learning rate of a step, counted from 0."""
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.peak * (self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * done)))


@dataclass(frozen=True, slots=True)
class Loop:
    """How a model is trained.

    `losses(step)` gives named scalars, of which "loss" is minimised; `report()` gives figures for the log
    every `report_every` steps and after the last.
    """

    schedule: Schedule
    losses: Callable[[int], Losses]
    report: Callable[[], dict[str, float]]
    report_every: int
    log: Path
    weight_decay: float = 0.1
    largest_gradient: float = 1.0

    def run(self, model: Model) -> None:
        """Trains `model` in place and writes a JSON line a report to `log`."""
        optimizer = make_optimizer(model, self.weight_decay)
        model.train()
        started = time.perf_counter()
        with self.log.open("w", encoding="utf-8") as log:
            for step in range(self.schedule.steps):
                losses = self._step(model, optimizer, step)
                if (step + 1) % self.report_every == 0 or step + 1 == self.schedule.steps:
                    figures = {name: round(float(value.detach()), 5) for name, value in losses.items()}
                    model.eval()
                    figures |= {name: round(value, 5) for name, value in self.report().items()}
                    model.train()
                    seconds = round(time.perf_counter() - started, 1)
                    line = json.dumps({"step": step + 1, "seconds": seconds, **figures})
                    log.write(line + "\n")
                    log.flush()
                    sys.stdout.write(line + "\n")
                    sys.stdout.flush()

    def _step(self, model: Model, optimizer: torch.optim.Optimizer, step: int) -> Losses:
        for group in optimizer.param_groups:
            # A tensor, so that a fused optimizer is not rebuilt for every rate.
            group["lr"].fill_(self.schedule.rate(step))
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        losses = self.losses(step)
        losses["loss"].backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), self.largest_gradient)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return losses


def compile_as(choice: str, function: Function) -> Function:
    """The function as `--compile` asks for it."""
    if choice == "off":
        return function
    return cast(Function, torch.compile(function, mode=_COMPILE_MODES[choice]))


def make_optimizer(model: Model, weight_decay: float) -> torch.optim.Optimizer:
    """AdamW; weight decay on matrices alone."""
    device = next(model.parameters()).device
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() != 2]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    rate = torch.tensor(0.0, device=device)
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), eps=1e-8, fused=device.type == "cuda")


def save_model(path: Path, model: Model, facts: dict[str, Any]) -> None:
    """Stores shape, float32 weights and facts of the training."""
    state = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    torch.save({"shape": model.shape.as_dict(), "state": state, "facts": facts}, path)


def read_facts(path: Path) -> dict[str, Any]:
    """The facts beside the model of a file that `save_model` wrote."""
    facts: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)["facts"]
    return facts


def read_model(path: Path, device: str) -> tuple[Model, dict[str, Any]]:
    """The model of a file that `save_model` wrote, and the facts beside it."""
    stored = torch.load(path, map_location="cpu", weights_only=True)
    model = Model(ModelShape(**stored["shape"]))
    model.load_state_dict(stored["state"])
    return model.to(device).eval(), stored["facts"]
