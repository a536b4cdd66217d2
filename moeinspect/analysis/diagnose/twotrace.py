"""Causes that only the comparison with a baseline shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from moeinspect.analysis.diagnose.aliases import diagnose_aliased
from moeinspect.analysis.diagnose.batch import diagnose_swapped
from moeinspect.analysis.diagnose.cache import diagnose_cached_prefix, diagnose_rerouted
from moeinspect.analysis.diagnose.disagg import diagnose_prompt_of_elsewhere
from moeinspect.analysis.diagnose.draft import (
    diagnose_accepted,
    diagnose_draft_layers,
)
from moeinspect.analysis.diagnose.fillers import diagnose_filler
from moeinspect.analysis.diagnose.graph import diagnose_padded_rows, diagnose_static_rows
from moeinspect.analysis.diagnose.joins import diagnose_joined, diagnose_left_out
from moeinspect.analysis.diagnose.mismatch import Mismatch
from moeinspect.analysis.diagnose.moved import diagnose_moved, diagnose_shifted_rows
from moeinspect.analysis.diagnose.nextstep import diagnosis
from moeinspect.analysis.diagnose.overlap import diagnose_buffer, diagnose_tails
from moeinspect.analysis.diagnose.ranks import diagnose_sliced, rank_reasons
from moeinspect.analysis.diagnose.replay import diagnose_noop
from moeinspect.analysis.diagnose.sources import Sources
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
from moeinspect.analysis.diagnose.words import counted, percent
from moeinspect.analysis.diagnose.wrapped import diagnose_wrapped
from moeinspect.analysis.findings import Diagnosis

_DETECTORS: tuple[Callable[[Mismatch, Sources], Diagnosis | None], ...] = (
    diagnose_wrapped,
    diagnose_permuted,
    diagnose_aliased,
    diagnose_shifted_layers,
    diagnose_left_out,
    diagnose_moved,
    diagnose_noop,
    diagnose_filler,
    diagnose_joined,
    diagnose_rerouted,
    diagnose_swapped,
    diagnose_sliced,
    diagnose_prompt_of_elsewhere,
    diagnose_whole_prompts,
    diagnose_cached_prefix,
    diagnose_shared_prefix,
    diagnose_static_rows,
    diagnose_padded_rows,
    diagnose_buffer,
    diagnose_lagging_buffer,
    diagnose_shifted_rows,
    diagnose_draft_layers,
    diagnose_tails,
    diagnose_last_rows,
    diagnose_outputs,
    diagnose_accepted,
)
"""Most specific first; the first that fits is taken."""


def diagnose_mismatch(mismatch: Mismatch) -> list[Diagnosis]:
    """Causes of the set mismatches that rounding and rows without routing do not explain, best first."""
    if not mismatch.rows.any():
        return []
    sources = Sources(mismatch)
    detected = (detector(mismatch, sources) for detector in _DETECTORS)
    found = next((one for one in detected if one is not None), None) or _unknown(mismatch)
    touched = mismatch.alignment.a_request[mismatch.rows]
    return [replace(found, because=found.because + rank_reasons(mismatch.a, touched))]


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
