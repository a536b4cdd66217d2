"""Which switches to suspect first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from moeinspect.analysis.diagnose.catalogue import CAUSES
from moeinspect.analysis.diagnose.rerun import PART_OF
from moeinspect.analysis.findings import Diagnosis

_ALSO_NEEDED: dict[str, tuple[str, ...]] = {
    "skip-finalize-prefill": ("disagg",),
    "verify-dropped": ("overlap",),
    "draft-forward-end": ("draft_topk", "overlap"),
    "draft-optout-late": ("draft",),
    "bypass-drops-flag": ("draft",),
    "ungated-backend": ("draft",),
    "dp-slice": ("draft",),
    "padded-rows": ("chunked_prefill_size",),
    "batch-index-swap": ("max_running_requests",),
    "retract-reroute": ("weight_updates",),
}
"""What a cause needs beside the switch that the catalogue names."""


def likeliest_first(switches: Sequence[str], diagnoses: Iterable[Diagnosis]) -> tuple[str, ...]:
    """`switches` with those in front that the diagnosed causes need, best cause first.

    Each is followed by its parts, as the prefix cache by its host tier. The others keep their order.
    """
    causes = [name for one in diagnoses for name in one.cause.split("|") if name in CAUSES]
    needed = [switch for cause in causes for switch in _needed(cause)]
    suspects = dict.fromkeys(part for name in needed for part in (name, *PART_OF.get(name, ())))
    return (
        *(name for name in suspects if name in switches),
        *(name for name in switches if name not in suspects),
    )


def _needed(cause: str) -> tuple[str, ...]:
    local = CAUSES[cause].local
    return (*([_switch_of(local[0])] if local else []), *_ALSO_NEEDED.get(cause, ()))


def _switch_of(option: str) -> str:
    """The option of a run that `option` sets: `overlap` of `--no-overlap`."""
    return option.removeprefix("--").removeprefix("no-").replace("-", "_")
