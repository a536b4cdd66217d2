"""Runs scenes side by side, each process one after another, until the time or the number is up."""

from __future__ import annotations

import multiprocessing
import queue
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

from confusion_table.outcomes import Outcome
from confusion_table.running import Plan, run_scene

_GRACE_S = 120.0
"""How long after the deadline a run may take to end before it counts as hung."""


@dataclass(frozen=True, slots=True)
class Budget:
    """When to stop: no run starts after `deadline` (`time.monotonic`); at most `scenes` of them."""

    deadline: float
    scenes: int


def run_scenes(plan: Plan, kinds: Sequence[str], jobs: int, budget: Budget) -> Iterator[Outcome]:
    """Outcomes as they come. Scenes take turns between `kinds`.

    Raises:
        RuntimeError: a process ended by itself, or did not end after the deadline.
    """
    context = multiprocessing.get_context("spawn")
    next_scene: Synchronized[int] = context.Value("i", 0)
    outcomes: multiprocessing.Queue[Outcome | None] = context.Queue()
    seconds = budget.deadline - time.monotonic()
    start = time.time()
    workers = [
        context.Process(
            target=_work, args=(plan, tuple(kinds), budget.scenes, start + seconds, next_scene, outcomes)
        )
        for _ in range(jobs)
    ]
    for worker in workers:
        worker.start()
    left = len(workers)
    try:
        while left:
            try:
                one = outcomes.get(timeout=5)
            except queue.Empty:
                if any(worker.exitcode not in (None, 0) for worker in workers):
                    raise RuntimeError("a process of the table ended by itself") from None
                if time.time() > start + seconds + _GRACE_S:
                    raise RuntimeError("a run hangs: it did not end after the deadline") from None
                continue
            if one is None:
                left -= 1
            else:
                yield one
    finally:
        for worker in workers:
            if left:
                worker.terminate()
            worker.join(30)


def _work(
    plan: Plan,
    kinds: tuple[str, ...],
    scenes: int,
    deadline: float,
    next_scene: Synchronized[int],
    outcomes: multiprocessing.Queue[Outcome | None],
) -> None:
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="confusion-") as top:
        while time.time() < deadline:
            with next_scene.get_lock():
                number = next_scene.value
                next_scene.value += 1
            if number >= scenes:
                break
            folder = Path(top) / f"scene-{number}"
            for one in run_scene(plan, kinds[number % len(kinds)], number // len(kinds), folder):
                outcomes.put(one)
                if time.time() >= deadline:
                    break
            shutil.rmtree(folder, ignore_errors=True)
    outcomes.put(None)
