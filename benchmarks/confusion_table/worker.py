"""One process of the table: runs the scenes that it is given, one after another."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from confusion_table.outcomes import Outcome
from confusion_table.plan import Plan


@dataclass(frozen=True, slots=True)
class Begun:
    """A run has begun: what is known of it before its end."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Task:
    """Scene `number` of a kind. No run of it starts after `deadline` (`time.time`)."""

    kind: str
    number: int
    deadline: float


def work(plan: Plan, folder: str, pipe: Connection) -> None:
    """Asks for tasks with None, until it is given None; sends `Begun` and `Outcome` for each run.

    It and whatever it starts are a process group of their own, to be killed together, and leave their files
    in `folder`.
    """
    os.setsid()
    Path(folder).mkdir()
    os.environ["TMPDIR"] = tempfile.tempdir = folder

    import torch

    from confusion_table.running import run_scene

    torch.set_num_threads(1)
    while (task := _next(pipe)) is not None:
        scene = Path(folder) / f"{task.kind}{task.number}"
        runs = run_scene(plan, task.kind, task.number, scene, begins=lambda one: pipe.send(Begun(one)))
        while time.time() < task.deadline and (one := next(runs, None)) is not None:
            pipe.send(one)
        shutil.rmtree(scene, ignore_errors=True)


def _next(pipe: Connection) -> Task | None:
    pipe.send(None)
    task: Task | None = pipe.recv()
    return task
