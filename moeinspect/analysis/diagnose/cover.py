"""Covers what is wrong with causes: the best one first, then the best for what it leaves unexplained."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from moeinspect.analysis.diagnose.mismatch import Mismatch
from moeinspect.analysis.diagnose.places import Cells, Place, everywhere
from moeinspect.analysis.diagnose.sources import Sources
from moeinspect.analysis.findings import Diagnosis
from moeinspect.analysis.rules.chance import LOG10_LIMIT, log10

NOISE = 0.05
"""Share of the wrong cells that a cause may leave unexplained without another one being looked for."""

_LOST_LAYER = 0.25
"""Share of wrong cells in a layer that is no noise, however few of all cells they are."""

_WHOLE_ROWS = 0.75
"""Smallest share of wrong cells in rows that were misplaced as a whole; some experts agree by chance."""

_SURE, _SURE_JOINED = 0.6, 0.7
"""Confidence that a cause beside another one needs; one of several names says less."""

_LEFT_OUT = (
    "wrong cells elsewhere are left out of these figures: something else explains them, or nothing does"
)

_LEFT_OVER = 0.5
"""Share of wrong rows that hold other tokens' rows, which shows by itself that something was misplaced."""


_SEVERAL, _FEWEST_STRANGE, _MOST = 4, 4, 0.5
"""Experts of a cell, cells, and the share of them with no expert in common, that rounding does not make."""

_FEWEST_CELLS = 12
"""Wrong cells that have to tell a cause where rounding may have made them: a few lie anywhere by chance."""


@dataclass(frozen=True, slots=True)
class Detector:
    """How one cause is recognized, and where it strikes.

    `find` judges all that is in question and wants nearly all of it to fit. `by_content`: what the cells
    hold shows the cause, wherever else something is wrong; others are told by right rows around them.
    `alone`: it is not looked for beside something else, since its place is where it was found.
    `weighs_chance`: it asks by itself whether rounding may have made what it sees.
    """

    find: Callable[[Mismatch, Sources], Diagnosis | None]
    place: Place = everywhere
    by_content: bool = False
    alone: bool = False
    weighs_chance: bool = False

    def may_be_chance(self, wrong: Cells, whole: Mismatch) -> bool:
        """Whether so few wrong cells [R, L] show nothing, in runs that rounding may make differ.

        They do show something where they fill a few of many rows, or where most of them have no expert in
        common, of several: rounding swaps one.
        """
        count, rows = int(wrong.sum()), int(wrong.any(axis=1).sum())
        if self.weighs_chance or count >= _FEWEST_CELLS or not count or whole.comparison.tolerance.exact:
            return False
        overlap = whole.comparison.cells.overlap[wrong]
        if whole.a.model.top_k >= _SEVERAL and count >= _FEWEST_STRANGE and (overlap == 0).mean() >= _MOST:
            return False
        return (count - rows) * log10(rows / max(1, len(wrong))) > LOG10_LIMIT


@dataclass(frozen=True, slots=True)
class Explanation:
    """A cause with the wrong cells [R, L] that it accounts for."""

    diagnosis: Diagnosis
    cells: Cells


@dataclass(frozen=True, slots=True)
class _Step:
    """A detector that fits, and the cells out of question once it is believed."""

    detector: Detector
    diagnosis: Diagnosis
    place: Cells


def covered(
    mismatch: Mismatch, detectors: Sequence[Detector], *, beside: bool
) -> tuple[list[Explanation], Mismatch]:
    """Causes of the mismatch, each of what those before leave, and what is left at the end.

    `beside`: something else is wrong in the trace, too, so that even the first cause has to be sure.
    """
    found: list[Explanation] = []
    rest, sources, left = mismatch, Sources(mismatch), list(detectors)
    while _is_more_than_noise(rest, mismatch):
        sources = Sources(rest, sources)
        step = _fitting(rest, sources, left, beside=beside) or _in_its_place(rest, sources, left)
        if step is None:
            break
        found.append(Explanation(step.diagnosis, rest.cells & step.place))
        rest = rest.without(np.broadcast_to(step.place, rest.cells.shape))
        left.remove(step.detector)
        beside = True
    return found, rest


def _is_more_than_noise(rest: Mismatch, whole: Mismatch) -> bool:
    left = int(rest.cells.sum())
    return left > 0 and (left >= NOISE * whole.cells.sum() or loses_a_layer(rest))


def loses_a_layer(rest: Mismatch) -> bool:
    """Whether so much of one layer is wrong that it is no noise, however much more is wrong elsewhere."""
    compared = np.maximum(1, rest.comparison.cells.compared.sum(axis=0))
    return bool((rest.cells.sum(axis=0) >= _LOST_LAYER * compared).any())


def _fitting(
    rest: Mismatch, sources: Sources, detectors: Sequence[Detector], *, beside: bool = True
) -> _Step | None:
    """The first cause that fits all that is in question."""
    for detector in detectors:
        found = detector.find(rest, sources)
        if found is not None and (not beside or _is_sure(found)):
            place = detector.place(rest, sources)
            inside = rest.cells & place
            if inside.any() and not detector.may_be_chance(inside, rest):
                return _Step(detector, found, place)
    return None


def _is_sure(found: Diagnosis) -> bool:
    return found.confidence >= (_SURE_JOINED if "|" in found.cause else _SURE)


def _in_its_place(rest: Mismatch, sources: Sources, detectors: Sequence[Detector]) -> _Step | None:
    """The first cause that fits where it would strike, with something else wrong elsewhere.

    It has to show by what the rows hold, or to leave what another cause fits.
    """
    for detector, place, view in _views(rest, sources, detectors):
        around = Sources(view, sources)
        found = detector.find(view, around)
        if found is None or not _is_sure(found):
            continue
        found = replace(found, because=(*found.because, _LEFT_OUT))
        if detector.by_content:
            return _Step(detector, found, place)
        asked = view.in_question[view.rows].sum()
        if view.cells.sum() < _WHOLE_ROWS * asked:
            continue
        if around.anywhere.mean() >= _LEFT_OVER:
            return _Step(detector, found, place)
        others = [one for one in detectors if one is not detector]
        without = rest.without(np.broadcast_to(place, rest.cells.shape))
        if _fitting(without, Sources(without, sources), others) is not None:
            return _Step(detector, found, place)
    return None


def _views(
    rest: Mismatch, sources: Sources, detectors: Sequence[Detector]
) -> Iterator[tuple[Detector, Cells, Mismatch]]:
    """What each detector sees if nothing is wrong but in its place; first those that judge by content."""
    total, strange = int(rest.cells.sum()), rest.cells | rest.unrouted[:, None]
    for detector in sorted(detectors, key=lambda one: not one.by_content):
        if detector.alone:
            continue
        place = detector.place(rest, sources)
        inside = int((rest.cells & place).sum())
        if detector.may_be_chance(rest.cells & place, rest):
            continue
        if inside > 0 and NOISE * total <= inside and (strange & ~place).any():
            yield detector, place, rest.only(np.broadcast_to(place, rest.cells.shape))
