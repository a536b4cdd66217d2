"""Distils the draft from the target, on the corpus and on text that the target writes.

Writes `draft.pt` and `draft-log.jsonl`. The draft starts from weights of its own: nothing is copied, so that
its routers and experts have nothing to do with the target's.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from training.corpus import KINDS
from training.loop import Loop, Losses, Schedule, compile_as, read_model, save_model
from training.model import Model, balance_loss
from training.options import add_training_options, parser
from training.sampling import Batch, continue_rows
from training.shapes import DRAFTS
from training.streams import Windows, heldout_windows, training_windows
from training.train import SIZES, TARGET_FILE, TrainingSize, autocast

DRAFT_FILE = "draft.pt"
TEMPERATURES = (0.0, 0.5, 1.0, 1.0)
"""Of the rows that the target writes, in turn."""
GREEDY_WEIGHT = 0.3
"""Weight of the loss on the target's most likely token, beside the divergence."""


@dataclass(frozen=True, slots=True)
class DistillSize:
    """How much is distilled; `rounds` times `rows` rows of text are written by the target."""

    steps: int
    peak: float
    rounds: int
    rows: int
    longest_prompt: int


DISTILL_SIZES = {
    "full": DistillSize(13000, peak=6e-3, rounds=4, rows=4096, longest_prompt=64),
    "toy": DistillSize(40, peak=5e-3, rounds=1, rows=16, longest_prompt=8),
}


def write_rows(model: Model, windows: Windows, size: DistillSize, seed: int, device: str) -> torch.Tensor:
    """Text of the target, each row after the first tokens of a window; [rounds * rows, T] int16."""
    generator = torch.Generator(device).manual_seed(seed)
    cycle = torch.tensor(TEMPERATURES, device=device)
    temperature = cycle.repeat(size.rows // len(cycle) + 1)[: size.rows]
    rounds = []
    for _ in range(size.rounds):
        ids = windows.draw(size.rows)
        given = torch.randint(4, size.longest_prompt, (size.rows,), generator=generator, device=device)
        with autocast(device):
            rounds.append(continue_rows(model, Batch(ids, given, temperature), generator).to(torch.int16))
    return torch.cat(rounds)


def distillation_loss(draft: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """KL(target || draft) in nats, and the draft's cross-entropy on the target's most likely token."""
    log_draft = draft.flatten(0, -2).float().log_softmax(dim=-1)
    log_target = target.flatten(0, -2).float().log_softmax(dim=-1)
    divergence = F.kl_div(log_draft, log_target, log_target=True, reduction="batchmean")
    return divergence, F.nll_loss(log_draft, log_target.argmax(dim=-1))


def draft_losses(
    draft: Model, target: Model, draw: Callable[[], torch.Tensor], device: str, compiling: str
) -> Callable[[int], Losses]:
    """The losses of a step of the draft."""

    def teach(ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = target(ids)[0]
        return logits

    def learn(ids: torch.Tensor, taught: torch.Tensor) -> tuple[torch.Tensor, ...]:
        logits, routings = draft(ids)
        return *distillation_loss(logits, taught), balance_loss(routings, draft.shape.num_experts)

    teach_now = compile_as(compiling, teach)
    learn_now = compile_as(compiling, learn)

    def losses(_step: int) -> Losses:
        ids = draw()
        with autocast(device):
            with torch.no_grad():
                taught = teach_now(ids)
            divergence, greedy, balance = learn_now(ids, taught)
        loss = divergence + GREEDY_WEIGHT * greedy + draft.shape.balance * balance
        return {"loss": loss, "divergence": divergence, "greedy": greedy, "balance": balance}

    return losses


@torch.no_grad()
def agreement(draft: Model, target: Model, ids: torch.Tensor, device: str) -> float:
    """Share of positions of ids [n, T] where both find the same token most likely."""
    with autocast(device):
        same = [(draft(p)[0].argmax(-1) == target(p)[0].argmax(-1)).float() for p in torch.split(ids, 32)]
    return float(torch.cat(same).mean())


def draft_report(draft: Model, target: Model, options: Any, written: torch.Tensor) -> dict[str, float]:  # noqa: ANN401
    """Agreement on held-out text by kind, and on rows that the target wrote (`written`, not trained on)."""
    size = SIZES[options.size]
    figures = {}
    for kind in KINDS:
        ids = heldout_windows(options.data, kind, size.length, size.heldout, options.device)
        figures[f"agree_{kind}"] = agreement(draft, target, ids, options.device)
    return figures | {"agree_written": agreement(draft, target, written, options.device)}


def _draws(windows: Windows, rows: torch.Tensor, size: TrainingSize, seed: int) -> Callable[[], torch.Tensor]:
    """Batches of half corpus, half rows that the target wrote."""
    generator = torch.Generator(rows.device).manual_seed(seed)
    half = size.batch // 2

    def draw() -> torch.Tensor:
        picks = torch.randint(rows.shape[0], (half,), generator=generator, device=rows.device)
        return torch.cat([windows.draw(size.batch - half), rows[picks].long()])

    return draw


def distil(options: Any) -> Model:  # noqa: ANN401 - argparse
    """Trains and stores the draft."""
    target, target_facts = read_model(options.data / TARGET_FILE, options.device)
    size, distill_size = SIZES[options.size], DISTILL_SIZES[options.size]
    steps = options.steps or distill_size.steps
    started = time.perf_counter()
    windows = training_windows(options.data, size.length, options.seed, options.device)
    rows = write_rows(target, windows, distill_size, options.seed, options.device)
    written_seconds = round(time.perf_counter() - started, 1)
    sys.stdout.write(f"The target wrote {rows.numel()} tokens in {written_seconds} s\n")
    kept_back, rows = rows[: size.heldout].long(), rows[size.heldout :]
    torch.manual_seed(options.seed)
    draft = Model(DRAFTS[options.size], seed=options.seed).to(options.device)
    loop = Loop(
        Schedule(steps, options.rate or distill_size.peak, min(size.warmup, steps // 4 + 1)),
        draft_losses(
            draft, target, _draws(windows, rows, size, options.seed), options.device, options.compile
        ),
        lambda: draft_report(draft, target, options, kept_back),
        size.report_every,
        options.data / "draft-log.jsonl",
    )
    loop.run(draft)
    facts = {
        "seed": options.seed,
        "steps": steps,
        "tokens": steps * size.batch * size.length,
        "written_tokens": rows.numel(),
        "written_seconds": written_seconds,
        "seconds": round(time.perf_counter() - started, 1),
        "torch": str(torch.__version__),
        "device": target_facts["device"],
    }
    save_model(options.data / DRAFT_FILE, draft, facts)
    sys.stdout.write(f"Wrote {options.data / DRAFT_FILE}: {facts}\n")
    return draft


def main(arguments: Sequence[str] | None = None) -> None:
    """Parses the options and distils."""
    options = parser(__doc__)
    add_training_options(options, seed=2)
    torch.set_float32_matmul_precision("high")
    distil(options.parse_args(arguments))


if __name__ == "__main__":
    main()
