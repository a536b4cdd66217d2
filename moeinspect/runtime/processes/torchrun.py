"""What torchrun, or whoever sets the same variables, says about this process. Does not import torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from moeinspect.errors import UsageError

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""All of them are set in a process that torchrun started."""


@dataclass(frozen=True, slots=True)
class TorchrunPlace:
    """Which of the processes this is, and where they meet: at a store on the host of rank 0.

    An agent of torchrun serves it, or rank 0 itself.
    """

    rank: int
    world_size: int
    master_host: str
    master_port: int
    spans_hosts: bool
    has_agent: bool

    @classmethod
    def of(cls, environ: Mapping[str, str] | None = None) -> TorchrunPlace | None:
        """This process's place; None if torchrun did not start it.

        Raises:
            UsageError: a variable is no number, or the rank is not one of the world.
        """
        environ = os.environ if environ is None else environ
        if not all(environ.get(name) for name in VARIABLES):
            return None
        rank, size, port = (_number(environ, name) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
        if rank >= size:
            raise UsageError(f"RANK={rank} is not below WORLD_SIZE={size}", "start moeinspect with torchrun")
        spans_hosts = environ.get("LOCAL_WORLD_SIZE") != environ["WORLD_SIZE"]
        has_agent = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return cls(rank, size, environ["MASTER_ADDR"], port, spans_hosts, has_agent)


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ[name]
    if not (text.isascii() and text.isdigit()):
        raise UsageError(
            f"{name}={text}: not a number, but this process looks as if torchrun had started it",
            f"unset {name}, or start moeinspect with torchrun",
        )
    return int(text)
