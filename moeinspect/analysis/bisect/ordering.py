"""Which switches to suspect first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from moeinspect.analysis.diagnose.catalogue import CAUSES
from moeinspect.analysis.diagnose.rerun import PART_OF
from moeinspect.analysis.findings import Diagnosis


def likeliest_first(switches: Sequence[str], diagnoses: Iterable[Diagnosis]) -> tuple[str, ...]:
    """`switches` with those in front that avoid the diagnosed causes, each followed by its parts.

    The others keep their order.
    """
    causes = [CAUSES[name] for one in diagnoses for name in one.cause.split("|") if name in CAUSES]
    named = [_switch_of(cause.local[0]) for cause in causes if cause.local]
    suspects = dict.fromkeys(part for name in named for part in (name, *PART_OF.get(name, ())))
    return (
        *(name for name in suspects if name in switches),
        *(name for name in switches if name not in suspects),
    )


def _switch_of(option: str) -> str:
    """The option of a run that `option` sets: `overlap` of `--no-overlap`."""
    return option.removeprefix("--").removeprefix("no-").replace("-", "_")
