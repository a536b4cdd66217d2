"""A local trace as it would be had an importer written it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moeinspect.trace.columns import UNKNOWN
from moeinspect.trace.schema import Origin, Trace


def imported(trace: Trace, engine: str = "sglang") -> Trace:
    """`trace` without what no answer tells: step, slot and worker of rows, and the switches of the run."""
    rows = trace.rows
    known = replace(
        rows,
        origin=np.full_like(rows.origin, Origin.IMPORTED),
        worker=np.zeros_like(rows.worker),
        step=np.full_like(rows.step, UNKNOWN),
        slot=np.full_like(rows.slot, UNKNOWN),
    )
    run = replace(
        trace.run, engine=engine, engine_version="", machine_key="", deterministic=False, run_config={}
    )
    return replace(trace, run=run, rows=known, worker_names=("imported",), events=None)
