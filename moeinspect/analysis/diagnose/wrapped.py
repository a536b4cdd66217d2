"""`uint8-wrap`: ids that kept their lowest eight bits."""

from __future__ import annotations

import numpy as np

from moeinspect.analysis.diagnose.mismatch import Mismatch
from moeinspect.analysis.diagnose.nextstep import diagnosis
from moeinspect.analysis.diagnose.sources import Sources
from moeinspect.analysis.diagnose.words import counted, percent
from moeinspect.analysis.findings import Diagnosis, Finding
from moeinspect.trace.schema import Trace, Validity

_BYTE = 256
_SAMPLED_ROWS = 4096
_UNLIKELY = 6
_FIT = 0.5
"""Share of the cells that have to fit: rounding turns over fewer."""


def diagnose_wrapped(mismatch: Mismatch, sources: Sources) -> Diagnosis | None:
    """Where the baseline has experts above 255, A has what is left of them in one byte."""
    if _largest_id(mismatch.a) >= _BYTE or mismatch.a.model.num_experts <= _BYTE:
        return None
    wrong = np.flatnonzero(mismatch.rows)
    rows = wrong[:: -(-len(wrong) // _SAMPLED_ROWS) or 1]
    ours, theirs = (mismatch.ids(side, rows).astype(np.int64) for side in "ab")
    above = (theirs >= _BYTE).any(axis=2)
    if not above.any():
        return None
    fits = (np.sort(ours, axis=2) == np.sort(theirs % _BYTE, axis=2)).all(axis=2)[above]
    if fits.mean() < _FIT:
        return None
    because = [
        f"A has no id above 255 though the model has {mismatch.a.model.num_experts} experts",
        f"in {percent(float(fits.mean()))} of {counted(len(fits), 'cell')} whose right ids go beyond, A "
        "holds these ids modulo 256",
    ]
    return diagnosis("uint8-wrap", 0.97, because, mismatch.a)


def diagnose_duplicates(trace: Trace, findings: tuple[Finding, ...]) -> Diagnosis:
    """Repeated ids of a large model that has none above 255 come from one byte; others are unexplained."""
    cells = counted(sum(finding.count for finding in findings), "cell")
    because = [f"{cells} with a repeated id, which no top-k router gives"]
    num_experts = trace.model.num_experts
    # How likely so many ids miss all experts above 255, were they spread evenly.
    rows, layers, top_k = trace.rows.expert_ids.shape
    unlikely = rows * layers * top_k * np.log10(max(num_experts, _BYTE) / _BYTE) > _UNLIKELY
    if not unlikely or _largest_id(trace) >= _BYTE:
        return diagnosis("unknown", 0.2, because, trace)
    because.append(
        f"no id is above 255 though the model has {num_experts} experts: in one byte two become the same"
    )
    return diagnosis("uint8-wrap", 0.85, because, trace)


def _largest_id(trace: Trace) -> int:
    real = np.isin(trace.rows.validity, (Validity.REAL, Validity.FILLER))
    is_moe = np.isin(trace.axis_layers(), trace.model.moe_layers)
    ids = trace.rows.expert_ids if real.all() else trace.rows.expert_ids[real]
    return int((ids if is_moe.all() else ids[:, is_moe]).max(initial=0))
