"""Causes that only the comparison with a baseline shows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.diagnose.aliases import diagnose_aliased
from moeinspect.analysis.diagnose.batch import diagnose_swapped
from moeinspect.analysis.diagnose.cache import diagnose_cached_prefix, diagnose_rerouted
from moeinspect.analysis.diagnose.cover import Detector, covered, loses_a_layer
from moeinspect.analysis.diagnose.disagg import diagnose_prompt_of_elsewhere, diagnose_seam
from moeinspect.analysis.diagnose.draft import (
    diagnose_accepted,
    diagnose_draft_layers,
)
from moeinspect.analysis.diagnose.fillers import diagnose_filler, filler_rows
from moeinspect.analysis.diagnose.graph import diagnose_padded_rows, diagnose_static_rows
from moeinspect.analysis.diagnose.joins import diagnose_joined, diagnose_left_out, joined_rows
from moeinspect.analysis.diagnose.mismatch import Mismatch
from moeinspect.analysis.diagnose.moved import diagnose_moved, diagnose_shifted_rows
from moeinspect.analysis.diagnose.nextstep import diagnosis
from moeinspect.analysis.diagnose.overlap import diagnose_buffer, diagnose_overwritten, diagnose_tails
from moeinspect.analysis.diagnose.places import (
    decoded,
    draft_layers,
    layers_found,
    next_step,
    region,
    retracted,
    rows_found,
    strange_prefill,
    tails,
    verified_elsewhere,
    whole_requests,
)
from moeinspect.analysis.diagnose.ranks import diagnose_sliced, rank_reasons
from moeinspect.analysis.diagnose.replay import diagnose_noop
from moeinspect.analysis.diagnose.slices import diagnose_slices
from moeinspect.analysis.diagnose.stepless import (
    diagnose_lagging_buffer,
    diagnose_last_rows,
    diagnose_outputs,
    diagnose_shared_prefix,
    diagnose_whole_prompts,
)
from moeinspect.analysis.diagnose.structure import (
    diagnose_permuted,
    diagnose_shifted_layers,
)
from moeinspect.analysis.diagnose.verdicts import diagnose_rounded
from moeinspect.analysis.diagnose.words import counted, percent
from moeinspect.analysis.diagnose.wrapped import diagnose_wrapped
from moeinspect.analysis.findings import Diagnosis

_DETECTORS = (
    Detector(diagnose_wrapped),
    Detector(diagnose_permuted, layers_found("permuted-ids"), by_content=True),
    Detector(diagnose_aliased),
    Detector(diagnose_shifted_layers, layers_found("shifted-layers"), by_content=True),
    Detector(diagnose_slices),
    Detector(diagnose_left_out, weighs_chance=True),
    Detector(diagnose_overwritten, next_step, alone=True),
    Detector(diagnose_moved),
    Detector(diagnose_noop, weighs_chance=True),
    Detector(diagnose_filler, filler_rows, by_content=True, weighs_chance=True),
    Detector(diagnose_joined, joined_rows, by_content=True),
    Detector(diagnose_rerouted, retracted),
    Detector(diagnose_swapped, whole_requests, by_content=True),
    Detector(diagnose_sliced, verified_elsewhere),
    Detector(diagnose_prompt_of_elsewhere, region("prompt")),
    Detector(diagnose_whole_prompts),
    Detector(diagnose_seam, region("output")),
    Detector(diagnose_cached_prefix, region("cached_prefix")),
    Detector(diagnose_shared_prefix),
    Detector(diagnose_static_rows, decoded, by_content=True),
    Detector(diagnose_padded_rows, strange_prefill, by_content=True),
    Detector(diagnose_buffer, next_step, alone=True),
    Detector(diagnose_lagging_buffer),
    Detector(diagnose_shifted_rows, rows_found("shifted-rows")),
    Detector(diagnose_draft_layers, draft_layers, by_content=True),
    Detector(diagnose_tails, tails),
    Detector(diagnose_last_rows),
    Detector(diagnose_outputs),
    Detector(diagnose_accepted, region("output")),
)
"""Most specific first; the first that fits is taken."""


@dataclass(frozen=True, slots=True)
class CellCauses:
    """Causes of set mismatches by name, and what is left of the mismatch."""

    named: list[Diagnosis]
    rest: Mismatch

    @property
    def loses_a_layer(self) -> bool:
        """Whether the rest is no noise, however much else is explained."""
        return loses_a_layer(self.rest)

    def without(self, cells: NDArray[np.bool_]) -> CellCauses:
        """The same where something else explains `cells` [R, L]."""
        return replace(self, rest=self.rest.without(cells))

    def left(self) -> list[Diagnosis]:
        """`numerics` for the rest if it looks like rounding beside a fault, else `unknown`."""
        if not self.rest.rows.any():
            return []
        rounded = diagnose_rounded(self.rest) if self.named else None
        return [_told(rounded or _unknown(self.rest), self.rest, self.rest.cells)]


def diagnose_mismatch(mismatch: Mismatch) -> CellCauses:
    """Causes of the set mismatches that rounding and rows without routing do not explain."""
    alone = {f.rule for f in mismatch.findings if f.input == 0 and f.severity != "note"}
    found, rest = covered(mismatch, _DETECTORS, beside=bool(alone - SYMPTOMS))
    named = [_told(one.diagnosis, mismatch, one.cells) for one in found]
    return CellCauses(named, rest)


SYMPTOMS = {"stale-rows", "repeated-rows", "duplicate-experts"}
"""One-trace rules that see, less well, what the comparison gives a cause."""


def _told(found: Diagnosis, mismatch: Mismatch, cells: NDArray[np.bool_]) -> Diagnosis:
    """With the number of cells that it accounts for, and the ranks that they are on."""
    touched = mismatch.alignment.a_request[cells.any(axis=1)]
    because = found.because + rank_reasons(mismatch.a, touched)
    return replace(found, because=because, explains=int(cells.sum()))


def _unknown(mismatch: Mismatch) -> Diagnosis:
    shares = mismatch.by_layer
    worst = int(shares.argmax())
    because = [
        f"{counted(int(mismatch.cells.sum()), 'cell')} in {counted(int(mismatch.rows.sum()), 'row')} differ: "
        f"{percent(mismatch.share_of('prompt'))} of prompt rows, "
        f"{percent(mismatch.share_of('output'))} of output rows",
        f"worst in layer {int(mismatch.alignment.layers[worst])} ({percent(float(shares[worst]))}), "
        f"{percent(mismatch.overlap_at(np.arange(len(shares))))} of the experts in common where they differ",
    ]
    because += [f.message for f in mismatch.found("model-mismatch")]
    return diagnosis("unknown", 0.2, because, mismatch.a)
