"""Options of a run: prefill and decode apart from each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from moeinspect.commands._choices import Transfer
from moeinspect.commands._declare import DISAGG, option, within


@dataclass(frozen=True, kw_only=True)
class DisaggOptions:
    """Prefill and decode apart from each other."""

    disagg: Annotated[
        bool,
        option("--disagg/--no-disagg", panel=DISAGG, help="Prefill and decode in separate processes."),
    ] = False
    prefill_workers: Annotated[
        int,
        option(
            "--prefill-workers",
            panel=DISAGG,
            metavar="M",
            callback=within(1, 64),
            help="Prefill workers, each a process.",
        ),
    ] = 1
    decode_workers: Annotated[
        int,
        option(
            "--decode-workers",
            panel=DISAGG,
            metavar="N",
            callback=within(1, 64),
            help="Decode workers, each a process.",
        ),
    ] = 1
    transfer: Annotated[
        Transfer,
        option(
            "--transfer", panel=DISAGG, help="How KV travels from prefill to decode: shared memory or gloo."
        ),
    ] = Transfer.SHM
