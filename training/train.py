"""Trains the target: next-token loss plus load-balancing loss; writes `target.pt`, `target-log.jsonl`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from training.corpus import KINDS
from training.loop import Loop, Losses, Schedule, compile_as, save_model
from training.model import Model, balance_loss
from training.options import add_training_options, parser
from training.shapes import TARGETS
from training.streams import Windows, heldout_windows, training_windows

TARGET_FILE = "target.pt"


@dataclass(frozen=True, slots=True)
class TrainingSize:
    """How much is trained; a window of `length` tokens is one example of a batch."""

    steps: int
    batch: int
    length: int
    peak: float
    warmup: int
    report_every: int
    heldout: int


SIZES = {
    "full": TrainingSize(7000, batch=64, length=512, peak=6e-3, warmup=300, report_every=1000, heldout=96),
    "toy": TrainingSize(40, batch=8, length=48, peak=5e-3, warmup=5, report_every=20, heldout=8),
}


def next_token_loss(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy in nats of ids [B, T] from the second on, given logits [B, T, V]."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def autocast(device: str) -> torch.autocast:
    """bfloat16 products on a GPU, float32 on a CPU."""
    kind = torch.device(device).type
    return torch.autocast(kind, dtype=torch.bfloat16, enabled=kind == "cuda")


def target_losses(
    model: Model, windows: Windows, size: TrainingSize, device: str, compiling: str
) -> Callable[[int], Losses]:
    """The losses of a step of the target."""

    def compute(ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits, routings = model(ids)
        return next_token_loss(logits, ids), balance_loss(routings, model.shape.num_experts)

    run = compile_as(compiling, compute)

    def losses(_step: int) -> Losses:
        with autocast(device):
            text, balance = run(windows.draw(size.batch))
        return {"loss": text + model.shape.balance * balance, "text": text, "balance": balance}

    return losses


@torch.no_grad()
def heldout_losses(model: Model, folder: Path, size: TrainingSize, device: str) -> dict[str, float]:
    """Held-out loss in nats a token by kind, and the smallest and largest share of choices of an expert."""
    figures = {}
    counts = torch.zeros(len(model.shape.moe_layers), model.shape.num_experts, device=device)
    for kind in KINDS:
        ids = heldout_windows(folder, kind, size.length, size.heldout, device)
        with autocast(device):
            parts = [model(part) for part in torch.split(ids, 32)]
        text = [
            next_token_loss(logits, part)
            for (logits, _), part in zip(parts, torch.split(ids, 32), strict=True)
        ]
        figures[f"heldout_{kind}"] = float(torch.stack(text).mean())
        for _, routings in parts:
            counts += torch.stack([routing.chosen.sum(dim=0) for routing in routings])
    shares = counts / counts.sum(dim=1, keepdim=True) * model.shape.num_experts
    return figures | {"least_load": float(shares.min()), "most_load": float(shares.max())}


def train_target(options: Any, log_name: str = "target-log.jsonl") -> Model:  # noqa: ANN401 - argparse
    """Trains and stores the target."""
    shape, size = TARGETS[options.size], SIZES[options.size]
    if options.balance is not None:
        shape = replace(shape, balance=options.balance)
    peak = options.rate or size.peak
    steps = options.steps or size.steps
    torch.manual_seed(options.seed)  # dropout
    model = Model(shape, seed=options.seed).to(options.device)
    windows = training_windows(options.data, size.length, options.seed, options.device)
    loop = Loop(
        Schedule(steps, peak, min(size.warmup, steps // 4 + 1)),
        target_losses(model, windows, size, options.device, options.compile),
        lambda: heldout_losses(model, options.data, size, options.device),
        size.report_every,
        options.data / log_name,
    )
    started = time.perf_counter()
    loop.run(model)
    facts = {
        "seed": options.seed,
        "steps": steps,
        "tokens": steps * size.batch * size.length,
        "seconds": round(time.perf_counter() - started, 1),
        "torch": str(torch.__version__),
        "device": torch.cuda.get_device_name() if options.device.startswith("cuda") else "cpu",
    }
    save_model(options.data / TARGET_FILE, model, facts)
    sys.stdout.write(f"Wrote {options.data / TARGET_FILE}: {facts}\n")
    return model


def main(arguments: Sequence[str] | None = None) -> None:
    """Parses the options and trains."""
    options = parser(__doc__)
    add_training_options(options, seed=1)
    options.add_argument("--balance", type=float, help="weight of the load-balancing loss (the shape's own)")
    torch.set_float32_matmul_precision("high")
    train_target(options.parse_args(arguments))


if __name__ == "__main__":
    main()
