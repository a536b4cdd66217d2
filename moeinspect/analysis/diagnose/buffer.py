"""`buffer-reuse`: rows of one step hold what the next step computed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.cells import row_keys, set_keys
from moeinspect.analysis.diagnose.facts import diagnosis, knows_workers
from moeinspect.analysis.diagnose.mismatch import Mismatch
from moeinspect.analysis.diagnose.words import of_all, percent
from moeinspect.analysis.findings import Diagnosis

_ENOUGH = 0.5
"""Share of mismatching rows found in the next step; rows of rejected drafts are not in a trace."""

_SAMPLED_ROWS = 4096
"""Wrong rows that are looked up, spread over all of them."""

_CONTROL = 0.2
"""Largest share that may be found in the step before instead."""


def diagnose_buffer(mismatch: Mismatch) -> Diagnosis | None:
    """Looks every mismatching row up among B's rows of the tokens that A computed one step later."""
    wrong = np.flatnonzero(mismatch.rows)
    rows = wrong[:: -(-len(wrong) // _SAMPLED_ROWS) or 1]
    if len(rows) < 2 or not knows_workers(mismatch.a) or mismatch.facts.overlap is False:
        return None
    found = {distance: _found_at(mismatch, rows, distance) for distance in (1, -1)}
    share = {distance: float(hits.mean()) for distance, hits in found.items()}
    if share[1] < _ENOUGH or share[-1] > _CONTROL:
        return None
    hits = int(found[1].sum())
    noun = "wrong row" if len(rows) == len(wrong) else "sampled wrong row"
    because = [
        f"{of_all(hits, len(rows), noun)} hold, in all MoE layers, what the same worker computed one step "
        f"later: they equal B's rows of the tokens of step + 1 ({percent(share[-1])} equal step - 1's)",
        "the device buffer was overwritten by the next forward before its rows were copied",
    ]
    if mismatch.facts.overlap:
        because.append(
            "overlap scheduling was on: the next forward runs while the last one's rows are copied"
        )
    return diagnosis("buffer-reuse", 0.6 + 0.37 * share[1], because, mismatch.a)


def _found_at(mismatch: Mismatch, rows: NDArray[np.int64], distance: int) -> NDArray[np.bool_]:
    """Which of these rows of A equal some row of B whose token A computed `distance` steps later."""
    steps = mismatch.a.rows.step[mismatch.alignment.a_row].astype(np.int64)
    workers = mismatch.a.rows.worker[mismatch.alignment.a_row].astype(np.int64)
    wanted = _place(workers[rows], steps[rows] + distance)
    places = _place(workers, steps)
    candidates = np.flatnonzero(np.isin(places, wanted) & (steps >= 0))
    held = row_keys(set_keys(mismatch.ids("a", rows)))
    right = row_keys(set_keys(mismatch.ids("b", candidates)))
    return np.asarray(np.isin(held ^ wanted, right ^ places[candidates]))


def _place(workers: NDArray[np.int64], steps: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A key per (worker, step) [n], to be joined with row keys."""
    return row_keys(np.stack([workers + 1, steps + (1 << 32)], axis=1).astype(np.uint64))
