"""`replay-noop`: a replay that is stated, and mismatches that look like those of two engines."""

from __future__ import annotations

import numpy as np

from moeinspect.analysis.diagnose.mismatch import Mismatch
from moeinspect.analysis.diagnose.nextstep import diagnosis
from moeinspect.analysis.diagnose.sources import Sources
from moeinspect.analysis.diagnose.words import counted, percent
from moeinspect.analysis.findings import Diagnosis

_FLIPS = 0.8
"""Share of the mismatching cells in which one expert differs, as rounding has it."""

_MOST_MISPLACED = 0.2
"""Largest share of rows that are wrong in most layers: rounding leaves most layers of a row alone."""


def diagnose_noop(mismatch: Mismatch, sources: Sources | None = None) -> Diagnosis | None:
    """A router that was handed rows has no choice of its own: what differs it has chosen all the same."""
    comparison = mismatch.comparison
    wrong = mismatch.cells
    if not comparison.replay or not wrong.any():
        return None
    top_k = max(mismatch.a.model.top_k, comparison.b.model.top_k)
    flips = float((comparison.cells.overlap[wrong] + 1 == top_k).mean())
    if top_k > 1 and (flips < _FLIPS or comparison.moved.misplaced.mean() > _MOST_MISPLACED):
        return None
    share = wrong.sum() / max(1, comparison.cells.compared.sum())
    layers = np.flatnonzero(wrong.any(axis=0))
    because = [
        f"the run states that rows were replayed ({comparison.replay}), which leaves no mismatch: nothing is "
        "put down to rounding",
        f"{counted(int(wrong.sum()), 'cell')} ({percent(float(share))}) in "
        f"{counted(len(layers), 'MoE layer')} differ, {percent(flips)} of them in one expert: these routers "
        "chose by themselves, as two engines do anyway",
    ]
    if comparison.floor is not None and not comparison.floor.floor.is_zero:
        rate = float(np.nanmean(comparison.floor.rates))
        because.append(
            f"B and {comparison.floor.floor.path} differ in {percent(rate)} of the cells: no more is what "
            "runs differ in without replay"
            if share < 1.5 * rate
            else f"B and {comparison.floor.floor.path} differ in {percent(rate)} of the cells"
        )
    return diagnosis("replay-noop", 0.93, because, mismatch.a)
