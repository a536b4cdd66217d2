"""Wrong halves of a disaggregated run: not merged, never stored, or joined at another row than they begin."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.diagnose.mismatch import NEARLY_ALL, Mismatch
from moeinspect.analysis.diagnose.nextstep import diagnosis
from moeinspect.analysis.diagnose.provenance import computed_nowhere, prompt_rows, workers_of
from moeinspect.analysis.diagnose.sources import Sources
from moeinspect.analysis.diagnose.words import of_all, percent
from moeinspect.analysis.findings import Diagnosis
from moeinspect.trace.schema import Trace

_SEAM = 0.8
"""Share of the affected requests that need a row behind the prompt which nobody computed."""

_RIGHT, _WHOLE_ROWS = 0.1, 0.9
"""Share of the wrong rows in which a layer is wrong that they keep; of wrong cells in rows that keep none."""


def diagnose_prompt_of_elsewhere(mismatch: Mismatch, sources: Sources) -> Diagnosis | None:
    """`no-merge` and `skip-finalize-prefill` where slots were used before: prompt rows wrong as a whole."""
    if mismatch.share_in("prompt") < NEARLY_ALL or mismatch.facts.disagg is False:
        return None
    if _keeps_layers(mismatch):
        return None  # what was never stored is wrong in every layer
    wrong = np.zeros(len(mismatch.a.rows), dtype=bool)
    wrong[mismatch.alignment.a_row[mismatch.rows]] = True
    workers = " and ".join(workers_of(mismatch.a, wrong))
    if (computed_nowhere(mismatch.a) & wrong).sum() >= NEARLY_ALL * wrong.sum():
        because = [
            f"the wrong rows are prompt rows, and {workers} which returned them says that it never computed "
            "them (step -1): the rows of the worker that ran the prompt were not merged in",
            "they hold whatever its host buffer had under these KV slots",
        ]
        return diagnosis("no-merge", 0.95, because, mismatch.a)
    unwritten = mismatch.rows | mismatch.unrouted
    prompt = mismatch.regions["prompt"]
    if mismatch.facts.disagg and mismatch.facts.overlap and workers and unwritten[prompt].mean() > 0.9:
        others = "hardly an output row is" if mismatch.share_of("output") else "no output row is"
        because = [
            f"{percent(float(unwritten[prompt].mean()))} of the prompt rows are wrong and {others}",
            f"they come from {workers}, which says that it computed them: its host buffer was never written",
        ]
        return diagnosis("skip-finalize-prefill", 0.8, because, mismatch.a)
    return None


def _keeps_layers(mismatch: Mismatch) -> bool:
    """Whether wrong rows are right in some layers, the same ones in nearly all."""
    shares = mismatch.cells[mismatch.rows][:, mismatch.places_in_question].mean(axis=0)
    return bool(len(shares) and shares.min() < _RIGHT and shares.mean() < _WHOLE_ROWS)


def outputs_of_nobody(trace: Trace) -> NDArray[np.bool_]:
    """Output rows [R] of which the worker that returned them says that it never computed them.

    Of a prompt that means that another worker did; an output's rows there are a prompt's, out of place.
    """
    return np.asarray(computed_nowhere(trace) & ~prompt_rows(trace))


def diagnose_seam(mismatch: Mismatch, sources: Sources) -> Diagnosis | None:
    """`merge-misaligned`: behind the prompt stand rows of the decode side's own part of it."""
    if mismatch.facts.disagg is False or mismatch.share_in("output") < NEARLY_ALL:
        return None
    pair = mismatch.alignment.pair
    touched = np.unique(pair[mismatch.rows | mismatch.unrouted])
    strange = np.unique(pair[outputs_of_nobody(mismatch.a)[mismatch.alignment.a_row]])
    at_seam = np.isin(touched, strange)
    if at_seam.mean() < _SEAM:
        return None
    because = [
        f"only output rows are wrong, and {of_all(int(at_seam.sum()), len(touched), 'affected request')} "
        "have some that the worker which returned them never computed (step -1), as of prompt rows it got "
        "from elsewhere",
        "the two sides' rows were joined by length: the decode side's begin at another row than was asked",
    ]
    return diagnosis("merge-misaligned", 0.93, because, mismatch.a)
