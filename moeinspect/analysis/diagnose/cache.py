"""Rows of KV that was kept or moved: a cached prefix, a restored or a recomputed request."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.diagnose.mismatch import NEARLY_ALL, Mismatch
from moeinspect.analysis.diagnose.nextstep import diagnosis
from moeinspect.analysis.diagnose.sources import Sources
from moeinspect.analysis.diagnose.words import percent
from moeinspect.analysis.findings import Diagnosis


def diagnose_rerouted(mismatch: Mismatch, sources: Sources) -> Diagnosis | None:
    """`retract-reroute`: rows that a re-prefill after a weight update computed with the new weights."""
    trace = mismatch.a
    retracted = mismatch.of_request("num_retractions") > 0
    if len(trace.weight_versions) < 2 or retracted[mismatch.rows].mean() < NEARLY_ALL:
        return None
    older = older_rows(mismatch)
    updated = mismatch.of_request("num_weight_versions") > 1
    if (older | updated)[mismatch.rows].mean() < NEARLY_ALL:
        return None
    because = [
        f"{percent(float(retracted[mismatch.rows].mean()))} of the wrong rows are of requests that were "
        f"retracted, in a run with {len(trace.weight_versions)} weight versions",
        f"{percent(float(older[mismatch.rows].mean()))} of them were first computed under older weights than "
        "the request ended with: the re-prefill routed them again under the new ones",
        "they look valid, but they are not the rows that made the recorded tokens",
    ]
    return diagnosis("retract-reroute", 0.95, because, trace)


def older_rows(mismatch: Mismatch) -> NDArray[np.bool_]:
    """Rows [R] that were first computed under older weights than their request ended with."""
    version = mismatch.of_a("weight_version")
    newest = np.zeros(len(mismatch.a.requests), dtype=np.int64)
    np.maximum.at(newest, mismatch.alignment.a_request, version)
    return np.asarray(version < newest[mismatch.alignment.a_request])


def diagnose_cached_prefix(mismatch: Mismatch, sources: Sources) -> Diagnosis | None:
    """`stale-slot`: KV was moved to other slots and the rows stayed behind."""
    unwritten = mismatch.rows | mismatch.unrouted
    cached = mismatch.regions["cached_prefix"]
    if cached[unwritten].mean() < NEARLY_ALL:
        return None
    because = [
        f"{percent(float(cached[unwritten].mean()))} of the wrong rows are of a cached prefix, and "
        f"{percent(float(unwritten[cached].mean()))} of all cached rows are wrong"
    ]
    if sources.anywhere.any():
        because.append(
            f"{percent(float(sources.anywhere.mean()))} of them are rows of other tokens, as a slot's former "
            "owner leaves them behind"
        )
    if mismatch.facts.host_tier:
        because.append("a host tier was configured: restored KV gets other slots than it had")
    return diagnosis("stale-slot", 0.9 if mismatch.facts.host_tier else 0.8, because, mismatch.a)
