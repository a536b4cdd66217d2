"""What a comparison of two traces is made of."""

from __future__ import annotations

from dataclasses import dataclass

from moeinspect.analysis.align import Alignment, align
from moeinspect.analysis.compare.cellwise import CellResults, compare_cells
from moeinspect.analysis.compare.neartie import NearTies, find_near_ties
from moeinspect.analysis.compare.tolerance import Tolerance, tolerance_between
from moeinspect.trace.schema import Trace


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two traces, what they share, what differs there and what of it rounding explains."""

    alignment: Alignment
    cells: CellResults
    ties: NearTies
    tolerance: Tolerance

    @property
    def a(self) -> Trace:
        """The trace that is judged."""
        return self.alignment.a

    @property
    def b(self) -> Trace:
        """The trace it is judged by."""
        return self.alignment.b


def compare(a: Trace, b: Trace) -> Comparison:
    """Aligns two traces and compares their common cells.

    Raises:
        InputError: there is nothing to compare.
    """
    alignment = align(a, b)
    tolerance = tolerance_between(a, b)
    cells = compare_cells(alignment, tolerance)
    return Comparison(alignment, cells, find_near_ties(alignment, cells, tolerance), tolerance)
