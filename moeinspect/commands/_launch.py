"""Runs whose worker processes are those that torchrun started."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from moeinspect.errors import UsageError
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.parallel.roster import Roster
from moeinspect.runtime.processes.torchrun import TorchrunPlace

if TYPE_CHECKING:
    from moeinspect.runtime.processes.joined import JoinedProcesses

COMMANDS = ("capture", "disagg-sim")
"""Commands whose runs may have more than one process."""


def is_for_another_rank() -> bool:
    """Whether this process is to work for the command line of rank 0."""
    place = TorchrunPlace.of()
    return place is not None and place.rank > 0


def work_for_rank_0() -> None:
    """Does what rank 0 assigns; it alone talks to the user.

    Raises:
        EngineError: rank 0 never came.
    """
    from moeinspect.runtime.processes.join import work  # imports torch

    place = TorchrunPlace.of()
    if place is not None:
        work(place)


@contextmanager
def launched() -> Iterator[JoinedProcesses | None]:
    """The other processes of the torchrun that this is rank 0 of; None if there is no torchrun.

    From now until the block ends they wait for work; afterwards they end.
    """
    place = TorchrunPlace.of()
    if place is None:
        yield None
        return
    from moeinspect.runtime.processes.joined import JoinedProcesses

    with JoinedProcesses(place) as processes:
        yield processes


def check_command(name: str | None, launcher: JoinedProcesses | None) -> None:
    """Raises UsageError if this command has no use for the processes of a torchrun."""
    if launcher is not None and launcher.place.world_size > 1 and name not in COMMANDS:
        raise UsageError(
            f"{name} runs in one process, torchrun started {launcher.place.world_size}",
            "run it without torchrun, with RANK and WORLD_SIZE unset",
        )


def check_world(config: RunConfig, launcher: JoinedProcesses | None) -> None:
    """Raises UsageError if the run cannot have exactly the processes that torchrun started."""
    if launcher is None:
        return
    names, size = Roster(config).names, launcher.place.world_size
    if len(names) != size:
        raise UsageError(
            f"torchrun started {size} processes, the run has {len(names)}: {', '.join(names)}",
            f"let --nproc-per-node times --nnodes be {len(names)}",
        )
    if config.disagg and config.transfer == "shm":
        raise UsageError(
            "--transfer shm: processes that torchrun started share no memory", "use --transfer gloo"
        )
