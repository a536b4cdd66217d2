"""All options of a run, which `capture` and `disagg-sim` share; `_binding.bind` turns fields into options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from moeinspect.commands._choices import Engine
from moeinspect.commands._declare import LATER, option
from moeinspect.commands._disagg_options import DisaggOptions
from moeinspect.commands._draft_options import DraftOptions
from moeinspect.commands._machine_options import MachineOptions
from moeinspect.commands._parallel_options import ParallelOptions
from moeinspect.commands._request_options import RequestOptions
from moeinspect.commands._scheduling_options import SchedulingOptions


@dataclass(frozen=True, kw_only=True)
class RunOptions(
    MachineOptions, DraftOptions, ParallelOptions, DisaggOptions, SchedulingOptions, RequestOptions
):
    """What a run of the runtime takes; the names are those of `runtime.config.RunConfig`.

    Fields come base by base from the last one to the first, which is the order of the help.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class LaterRunOptions:
    """Options of a run that this version knows by name only (see `_later`)."""

    engine: Annotated[Engine, option("--engine", panel=LATER, help="Who runs the model.")] = Engine.LOCAL
    url: Annotated[
        str | None, option("--url", panel=LATER, metavar="URL", help="Address of a running engine.")
    ] = None
    replay: Annotated[
        str | None, option("--replay", panel=LATER, metavar="TRACE", help="Force a trace's routing.")
    ] = None
