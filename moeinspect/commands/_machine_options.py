"""Options of a run: model and machine, and what is recorded of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from moeinspect.commands._choices import Dtype
from moeinspect.commands._declare import MACHINE, RECORDING, option, within


@dataclass(frozen=True, kw_only=True)
class MachineOptions:
    """Model and machine, and what is recorded of them."""

    deterministic: Annotated[
        bool,
        option(
            "--deterministic/--no-deterministic",
            panel=MACHINE,
            help="The same bits whatever the batch, chunk or worker; or the ordinary, faster kernels.",
        ),
    ] = True
    backend: Annotated[
        str,
        option(
            "--backend",
            panel=MACHINE,
            metavar="NAME",
            help="What computes the router's top-k: torch, triton, bypass, or an installed backend.",
        ),
    ] = "torch"
    device: Annotated[str, option("--device", panel=MACHINE, metavar="DEVICE", help="Where to run.")] = "cpu"
    dtype: Annotated[Dtype, option("--dtype", panel=MACHINE, help="Type of weights and activations.")] = (
        Dtype.FLOAT32
    )
    threads: Annotated[
        int,
        option(
            "--threads",
            panel=MACHINE,
            metavar="N",
            callback=within(1, 1024),
            help="CPU threads of every worker.",
        ),
    ] = 1
    weights: Annotated[
        bool,
        option("--weights/--no-weights", panel=RECORDING, help="Record the routing weights, too."),
    ] = False
    margins: Annotated[
        bool,
        option(
            "--margins/--no-margins",
            panel=RECORDING,
            help="Record by how much the last chosen expert won, too.",
        ),
    ] = False
