"""Requests that carry another request's rows."""

from __future__ import annotations

import numpy as np

from moeinspect.analysis.diagnose.mismatch import Mismatch
from moeinspect.analysis.diagnose.nextstep import diagnosis
from moeinspect.analysis.diagnose.sources import Sources
from moeinspect.analysis.diagnose.words import counted, of_all, percent
from moeinspect.analysis.findings import Diagnosis

_WHOLE = 0.9
"""Share of a request's rows that have to be wrong: rows of a common prefix are right in any order."""


def diagnose_swapped(mismatch: Mismatch, sources: Sources) -> Diagnosis | None:
    """`batch-index-swap`: from the first row on, a request holds the rows of another one."""
    if mismatch.facts.mixed_opt_in is False or not len(sources):
        return None
    pair = mismatch.alignment.pair
    touched = np.unique(pair[mismatch.rows])
    whole = [p for p in touched.tolist() if mismatch.rows[pair == p].mean() >= _WHOLE]
    swapped = float(sources.at_position.mean())
    if len(whole) < _WHOLE * len(touched) or swapped < _WHOLE:
        return None
    because = [
        f"{of_all(len(whole), len(touched), 'affected request')} hold other rows from end to end, and "
        f"{percent(swapped)} of these rows stand at the same place of another request",
    ]
    lost = {f.request for f in mismatch.found("missing-request") if f.input == 0}
    if lost:
        because.append(f"{counted(len(lost), 'request')} that asked for rows got none")
    if mismatch.facts.mixed_opt_in:
        because.append("some requests of the run did not ask for their rows: the list of results is shorter")
    sure = 0.93 if mismatch.facts.mixed_opt_in else 0.85 if lost else 0.75
    return diagnosis("batch-index-swap", sure, because, mismatch.a)
