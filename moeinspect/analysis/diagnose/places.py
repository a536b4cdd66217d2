"""Where each cause strikes: the cells in which it is looked for when they are not all that is wrong.

A place is [R, L] or, for whole rows, [R, 1].
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.diagnose.cache import older_rows
from moeinspect.analysis.diagnose.draft import layers_of_draft, rows_of_another_layout
from moeinspect.analysis.diagnose.mismatch import Mismatch
from moeinspect.analysis.diagnose.overlap import tail_rows
from moeinspect.analysis.diagnose.provenance import rows_of_findings
from moeinspect.analysis.diagnose.sources import Sources

Cells = NDArray[np.bool_]
Place = Callable[[Mismatch, Sources], Cells]

_MOST = 0.5

_WHOLE = 0.9
"""Share of a request's rows that have to be wrong for it to hold another one's."""


def everywhere(mismatch: Mismatch, sources: Sources) -> Cells:
    """All that is in question."""
    return mismatch.in_question


def region(name: str) -> Place:
    """Rows of a region."""
    return lambda mismatch, sources: mismatch.regions[name][:, None]


def layers_found(rule: str) -> Place:
    """Layers that findings of a rule name, in all rows."""

    def place(mismatch: Mismatch, sources: Sources) -> Cells:
        named = sorted({layer for finding in mismatch.found(rule) for layer in finding.layers})
        return np.isin(mismatch.alignment.layers, named) & mismatch.in_question

    return place


def rows_found(rule: str) -> Place:
    """Rows that findings of a rule name."""

    def place(mismatch: Mismatch, sources: Sources) -> Cells:
        named = rows_of_findings(mismatch.a, mismatch.found(rule))
        return np.asarray(named[mismatch.alignment.a_row])[:, None]

    return place


def draft_layers(mismatch: Mismatch, sources: Sources) -> Cells:
    """Layers that hold somebody else's choices, in all rows, and rows that a draft stored elsewhere."""
    places = layers_of_draft(mismatch)
    layers = np.isin(np.arange(len(mismatch.layers)), places)
    return (layers | rows_of_another_layout(mismatch, places)[:, None]) & mismatch.in_question


def retracted(mismatch: Mismatch, sources: Sources) -> Cells:
    """Rows of requests that were retracted, computed under older weights than the request ended with."""
    return (older_rows(mismatch) & (mismatch.of_request("num_retractions") > 0))[:, None]


def whole_requests(mismatch: Mismatch, sources: Sources) -> Cells:
    """Rows of requests that are wrong from end to end."""
    pair, looked_at = mismatch.alignment.pair, mismatch.rows_in_question
    wrong = np.bincount(pair[mismatch.rows], minlength=len(mismatch.alignment.pairing.pairs))
    rows = np.bincount(pair[looked_at], minlength=len(wrong))
    return np.asarray(wrong >= _WHOLE * np.maximum(1, rows))[pair][:, None]


def verified_elsewhere(mismatch: Mismatch, sources: Sources) -> Cells:
    """Rows of verify steps on data-parallel ranks after the first."""
    return (mismatch.regions["accepted_draft"] & (mismatch.of_request("dp_rank") > 0))[:, None]


def decoded(mismatch: Mismatch, sources: Sources) -> Cells:
    """Rows of decode and verify steps."""
    return mismatch.is_decoded[:, None]


def strange_prefill(mismatch: Mismatch, sources: Sources) -> Cells:
    """Rows of prefill steps that hold what no token should have."""
    return (sources.spread(~sources.anywhere) & ~mismatch.is_decoded)[:, None]


def next_step(mismatch: Mismatch, sources: Sources) -> Cells:
    """Rows of steps of which most wrong rows hold what was computed a step later: a buffer is one for all.

    With a draft all rows, since those of rejected tokens are in no trace.
    """
    if mismatch.facts.draft is not False:
        return mismatch.in_question
    keys = np.stack([mismatch.of_a("worker"), mismatch.of_a("step")], axis=1)
    _, step = np.unique(keys, axis=0, return_inverse=True)
    step = step.reshape(-1)
    wrong = np.bincount(step, weights=mismatch.rows)
    late = np.bincount(step, weights=sources.spread(sources.at_step(1)))
    return np.asarray((late > 0) & (late >= _MOST * wrong))[step][:, None]


def tails(mismatch: Mismatch, sources: Sources) -> Cells:
    """The wrong end of each request, where the row before it is right."""
    unwritten = mismatch.rows | mismatch.unrouted
    ends = tail_rows(mismatch, unwritten)
    before = np.zeros(len(ends), dtype=bool)
    before[:-1] = unwritten[:-1] & ~ends[:-1] & ends[1:] & (np.diff(mismatch.alignment.pair) == 0)
    longer = np.unique(mismatch.alignment.pair[before])
    return (ends & ~np.isin(mismatch.alignment.pair, longer))[:, None]
