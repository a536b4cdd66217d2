"""Runs of rows and what happens when there are too many of them."""

import numpy as np
from analysis.tracefactory import make_facts, make_records, make_trace

from moeinspect.analysis.align import align
from moeinspect.analysis.compare import runs as runs_module
from moeinspect.analysis.compare.runs import runs_of

FACTS = make_facts(3, 16, 4)


def aligned(count=2):
    trace = make_trace(make_records(FACTS, count), FACTS)
    return align(trace, trace)


def loops(alignment, mismatch):
    """Runs as a plain walk over the rows finds them."""
    found, last = [], None
    for row, cells in enumerate(mismatch):
        key = (int(alignment.pair[row]), cells.tolist()) if cells.any() else None
        if key is not None and key == last:
            found[-1][1] = row + 1
        elif key is not None:
            found.append([row, row + 1])
        last = key
    return found


def test_runs_are_those_of_a_walk_over_the_rows():
    alignment = aligned(3)
    rng = np.random.default_rng(0)
    for density in (0.0, 0.1, 0.5, 0.9, 1.0):
        mismatch = rng.random((len(alignment), 3)) < density
        runs = runs_of(alignment, mismatch)
        assert [[run.start, run.stop] for run in runs] == loops(alignment, mismatch)
        assert not runs.merged
        assert runs.sums(mismatch).tolist() == [int(mismatch[run].sum()) for run in runs]


def test_too_many_runs_become_one_per_request_and_lose_no_cell(monkeypatch):
    monkeypatch.setattr(runs_module, "MAX_RUNS", 5)
    alignment = aligned(2)
    mismatch = np.zeros((len(alignment), 3), dtype=bool)
    mismatch[::2, 1] = True
    runs = runs_of(alignment, mismatch)
    assert runs.merged
    assert [(run.start, run.stop) for run in runs] == [(0, 39), (40, 77)]
    assert runs.sums(mismatch).sum() == mismatch.sum()
