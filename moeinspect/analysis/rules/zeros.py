"""`zero-layers` and `zero-rows`: cells of K zeros, which no router with K > 1 can choose."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.findings import Finding
from moeinspect.analysis.rules.grouping import findings_of
from moeinspect.analysis.rules.view import TraceView


def check_zeros(view: TraceView) -> list[Finding]:
    """Layers that are zero in all checked rows of a request, then all other cells of zeros.

    Exempt layers and top-1 models are left out: there a zero may be the choice of expert 0.
    """
    if view.top_k < 2:
        return []
    zero = view.facts.zero & view.checked[:, None] & ~view.exempt[None, :]
    whole = zero & _zero_layers(view, zero)
    evidence = {"multiplicity": view.top_k}
    layers = f"all {view.top_k} ids are 0, in every row of the request"
    rows = f"all {view.top_k} ids are 0"
    found = findings_of(view, view.claim(whole), "zero-layers", "error", lambda run: (layers, evidence))
    return found + findings_of(view, view.claim(zero), "zero-rows", "error", lambda run: (rows, evidence))


def _zero_layers(view: TraceView, zero: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """For each row and layer [R, M]: the layer is zero in all checked rows of the row's request."""
    N, M = len(view.trace.requests), zero.shape[1]
    request = view.places.request
    num_zero = np.zeros((N + 1, M), dtype=np.int64)
    starts = np.flatnonzero(~view.joined)
    if len(starts) and zero.any():
        # The rows of a request stand together, so each of these pieces is one request (or no request's).
        num_zero[request[starts]] = np.add.reduceat(zero, starts, axis=0, dtype=np.int64)
    num_checked = np.bincount(request[view.checked], minlength=N + 1)
    whole: NDArray[np.bool_] = num_zero == num_checked[:, None]
    return whole[request] & zero
