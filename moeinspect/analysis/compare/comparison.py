"""What a comparison of two traces is made of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.align import Alignment, align
from moeinspect.analysis.compare.cellwise import CellResults, compare_cells
from moeinspect.analysis.compare.floor import FloorVerdict, judge, measure_floor
from moeinspect.analysis.compare.moved import MovedRows, find_moved_rows
from moeinspect.analysis.compare.neartie import NearTies, find_near_ties
from moeinspect.analysis.compare.tokenties import token_ties
from moeinspect.analysis.compare.tolerance import Tolerance, tolerance_between
from moeinspect.analysis.replays import replay_statement
from moeinspect.trace.schema import Trace


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two traces, what they share, what differs there and what of it rounding explains."""

    alignment: Alignment
    cells: CellResults
    ties: NearTies
    tolerance: Tolerance
    token_ties: frozenset[int]
    """Pairs whose outputs part no sooner than rounding makes likely."""
    moved: MovedRows
    """Whose routing rows hold that are wrong in most layers."""
    floor: FloorVerdict | None = None
    """What is within the noise floor that was given."""
    replay: str = ""
    """The switch that states that one trace replayed the other's rows: then rounding explains nothing."""

    @property
    def explained_sets(self) -> NDArray[np.bool_]:
        """Set mismatches [R, L] at near-ties, after one, or within the noise floor."""
        return self.ties.explained_sets | self.within("set")

    def within(self, kind: Literal["set", "order", "weight"]) -> NDArray[np.bool_]:
        """Mismatches [R, L] of one kind that the noise floor excuses."""
        replayed = bool(self.replay) and kind == "set"
        if self.floor is None or kind not in self.floor.within or replayed:
            return np.zeros(self.cells.set_mismatch.shape, dtype=bool)
        return self.floor.within[kind]

    @property
    def a(self) -> Trace:
        """The trace that is judged."""
        return self.alignment.a

    @property
    def b(self) -> Trace:
        """The trace it is judged by."""
        return self.alignment.b


def compare(a: Trace, b: Trace, b2: Trace | None = None) -> Comparison:
    """Aligns two traces and compares their common cells; `b2`, a run like `b`, tells the noise floor.

    Raises:
        InputError: there is nothing to compare, or `b2` cannot tell the noise of `b`.
    """
    alignment = align(a, b)
    tolerance = tolerance_between(a, b)
    cells = compare_cells(alignment, tolerance)
    floor = None if b2 is None else judge(alignment, cells, measure_floor(b, b2, tolerance))
    ties = find_near_ties(alignment, cells, tolerance)
    replay = replay_statement(a) or replay_statement(b)
    if replay:
        none = np.zeros_like(cells.set_mismatch)
        ties = replace(ties, near_tie=none, cascade=none)
    return Comparison(
        alignment,
        cells,
        ties,
        tolerance,
        token_ties(alignment, cells, ties, tolerance, floor),
        find_moved_rows(alignment, cells),
        floor,
        replay,
    )
