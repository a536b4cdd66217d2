"""Rows of data-parallel ranks: a rank's slice of a common batch cut out at a wrong place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.diagnose.facts import run_facts
from moeinspect.analysis.diagnose.mismatch import NEARLY_ALL, Mismatch
from moeinspect.analysis.diagnose.nextstep import diagnosis
from moeinspect.analysis.diagnose.sources import Sources
from moeinspect.analysis.diagnose.words import counted, of_all, percent
from moeinspect.analysis.findings import Diagnosis, Finding
from moeinspect.trace.schema import Origin, Trace

_MOST = 0.8
_UNTOUCHED = 0.02
"""Largest share of wrong rows where a fault leaves rows alone."""

_ENOUGH = 8
"""Rows of the first rank that have to be right where those of the others are wrong."""


def diagnose_sliced(mismatch: Mismatch, sources: Sources) -> Diagnosis | None:
    """`dp-slice`: where requests feed several tokens a step, ranks after the first hold neighbours' rows."""
    facts, rank = mismatch.facts, mismatch.of_request("dp_rank")
    several = facts.dp_size > 1 if facts.dp_size is not None else bool((rank > 0).any())
    if not several or facts.draft is False:
        return None
    verified = mismatch.regions["accepted_draft"]
    wrong, first, others = mismatch.rows, verified & (rank == 0), verified & (rank > 0)
    if others[wrong].mean() < NEARLY_ALL or first.sum() < _ENOUGH:
        return None
    if mismatch.share_among(first) > _UNTOUCHED:
        return None
    because = [
        f"the wrong rows are of verify steps: {percent(mismatch.share_among(others))} of those of the other "
        f"data-parallel ranks, {int(wrong[first].sum()) or 'none'} of the {int(first.sum()):,} of rank 0",
    ]
    if sources.elsewhere.any():
        because.append(
            f"{percent(float(sources.elsewhere.mean()))} of them hold a row of another request, "
            f"{percent(float(sources.in_any_step.mean()))} one of the same step; rows of rejected tokens are "
            "not in a trace"
        )
    because.append(
        "a rank's slice of the common batch starts behind as many rows as there are requests on the ranks "
        "before, as if each fed one token"
    )
    return diagnosis("dp-slice", 0.95 if sources.elsewhere.mean() > 0.1 else 0.8, because, mismatch.a)


def diagnose_sliced_copies(
    trace: Trace, findings: Sequence[Finding], stale: NDArray[np.bool_]
) -> Diagnosis | None:
    """`dp-slice` from `stale-rows`: rows [R] of verify steps that are copies from another data-parallel rank.

    Whatever a slot or a buffer had before is of the same rank.
    """
    facts = run_facts(trace)
    verified = float((trace.rows.origin == Origin.VERIFY)[stale].mean())
    if facts.draft is False or facts.dp_size is None or facts.dp_size < 2 or verified < NEARLY_ALL:
        return None
    rank = dict(zip(trace.requests.id.tolist(), trace.requests.dp_rank.tolist(), strict=True))
    sources = [{rank.get(source["request"]) for source in f.evidence.get("sources", ())} for f in findings]
    from_others = sum(bool(of - {rank.get(f.request)}) for f, of in zip(findings, sources, strict=True))
    if from_others < _MOST * len(findings):
        return None
    because = [
        f"{of_all(from_others, len(findings), 'run')} of them equal rows of another data-parallel rank: in "
        "verify steps the slice of the common batch starts in a neighbour's rows",
    ]
    return diagnosis("dp-slice", 0.8, because, trace)


def rank_reasons(trace: Trace, requests: NDArray[np.int64]) -> tuple[str, ...]:
    """Says so where `requests`, two or more, are on some data-parallel ranks only."""
    ranks, touched = np.unique(trace.requests.dp_rank), np.unique(trace.requests.dp_rank[requests])
    if len(np.unique(requests)) < 2 or len(touched) == len(ranks):
        return ()
    numbers = ", ".join(map(str, touched.tolist()))
    others = counted(len(ranks) - len(touched), "other rank")
    return (f"all of it on data-parallel rank{'s' if len(touched) > 1 else ''} {numbers}, none on {others}",)
