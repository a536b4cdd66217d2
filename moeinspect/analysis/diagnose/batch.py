"""Requests that carry another request's rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.diagnose.mismatch import Mismatch
from moeinspect.analysis.diagnose.nextstep import diagnosis
from moeinspect.analysis.diagnose.sources import Sources
from moeinspect.analysis.diagnose.words import counted, of_all, percent
from moeinspect.analysis.findings import Diagnosis, Finding
from moeinspect.analysis.requests import not_opted_in
from moeinspect.trace.schema import Trace, Validity

_WHOLE = 0.9
"""Share of a request's rows that have to be wrong: rows of a common prefix are right in any order."""

_FROM_OTHERS = 0.5
"""Share of wrong rows that have to be another token's where requests hold rows that they did not ask for."""


def diagnose_given_away(trace: Trace, findings: Sequence[Finding]) -> Diagnosis | None:
    """`batch-index-swap`: who did not ask for rows holds some; whose rows these are got none or others."""
    if not len(holders := _unasked_holders(trace)):
        return None
    lost = {(f.request, f.evidence.get("sample", 0)) for f in findings if f.rule == "missing-request"}
    return diagnosis(
        "batch-index-swap", 0.95 if lost else 0.85, _of_holders(trace, holders, len(lost)), trace
    )


def _unasked_holders(trace: Trace) -> NDArray[np.int64]:
    """Numbers of the requests [n] that did not ask for their rows and hold real ones."""
    real = trace.rows.validity == Validity.REAL
    silent = np.flatnonzero(not_opted_in(trace)).tolist()
    return np.asarray([i for i in silent if real[trace.row_range(i)].any()], dtype=np.int64)


def _of_holders(trace: Trace, holders: NDArray[np.int64], lost: int) -> list[str]:
    silent = int(not_opted_in(trace).sum())
    because = [f"{of_all(len(holders), silent, 'request')} that did not ask for rows hold some of others"]
    if lost:
        because.append(f"{counted(lost, 'request')} that asked for rows got none")
    because.append("the list of results holds those who asked alone, and was read by batch position")
    return because


def diagnose_swapped(mismatch: Mismatch, sources: Sources) -> Diagnosis | None:
    """`batch-index-swap`: from the first row on, a request holds the rows of another one."""
    if mismatch.facts.mixed_opt_in is False or not len(sources):
        return None
    lost = {f.request for f in mismatch.found("missing-request") if f.input == 0}
    holders = _unasked_holders(mismatch.a)
    if len(holders) and sources.anywhere.mean() >= _FROM_OTHERS:
        because = [f"{percent(float(sources.anywhere.mean()))} of the wrong rows are rows of other tokens"]
        because += _of_holders(mismatch.a, holders, len(lost))
        return diagnosis("batch-index-swap", 0.95, because, mismatch.a)
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
    if lost:
        because.append(f"{counted(len(lost), 'request')} that asked for rows got none")
    if mismatch.facts.mixed_opt_in:
        because.append("some requests of the run did not ask for their rows: the list of results is shorter")
    sure = 0.93 if mismatch.facts.mixed_opt_in else 0.85 if lost else 0.75
    return diagnosis("batch-index-swap", sure, because, mismatch.a)
