"""The first cell, in execution order, at which the two runs differ: the cause sits there or before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from moeinspect.analysis.align import Alignment
from moeinspect.analysis.compare.cellwise import CellResults
from moeinspect.analysis.diagnose.facts import knows_workers


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first mismatching cell. `row` is its place among the R comparable rows, `rule` what differs."""

    rule: str
    row: int
    request: str
    position: int
    layer: int
    token: int
    step: int | None
    worker: str | None

    def is_in(self, run: slice, rule: str) -> bool:
        """Whether this is a cell of that finding."""
        return rule == self.rule and run.start <= self.row < run.stop

    def as_evidence(self) -> dict[str, Any]:
        """What a report says of it."""
        return {
            "position": self.position,
            "layer": self.layer,
            "token": self.token,
            "step": self.step,
            "worker": self.worker,
        }


def first_divergence(alignment: Alignment, cells: CellResults) -> Divergence | None:
    """By A's steps where every mismatching row has one, then by position, layer and request id."""
    mismatch = cells.any_mismatch
    rows = np.flatnonzero(mismatch.any(axis=1))
    if not len(rows):
        return None
    a = alignment.a
    steps = a.rows.step[alignment.a_row[rows]]
    has_steps = knows_workers(a) and bool((steps >= 0).all())
    by_step = steps if has_steps else np.zeros(len(rows), dtype=np.int32)
    layers = mismatch[rows].argmax(axis=1)
    ids = np.asarray([alignment.request_id(pair) for pair in range(len(alignment.pairing.pairs))])
    by_id = np.argsort(np.argsort(ids, kind="stable"), kind="stable")[alignment.pair[rows]]
    best = np.lexsort((by_id, layers, alignment.position[rows], by_step))[0]
    row, place = int(rows[best]), int(layers[best])
    pair, position = int(alignment.pair[row]), int(alignment.position[row])
    worker = int(a.rows.worker[alignment.a_row[row]])
    return Divergence(
        rule=_rule_at(cells, row, place),
        row=row,
        request=alignment.request_id(pair),
        position=position,
        layer=int(alignment.layers[place]),
        token=int(a.tokens_of(alignment.pairing.pairs[pair][0])[position]),
        step=int(steps[best]) if has_steps else None,
        worker=a.worker_names[worker] if has_steps and worker < len(a.worker_names) else None,
    )


def _rule_at(cells: CellResults, row: int, place: int) -> str:
    if cells.set_mismatch[row, place]:
        return "set-mismatch"
    if cells.order_mismatch is not None and cells.order_mismatch[row, place]:
        return "order-mismatch"
    return "weight-mismatch"
