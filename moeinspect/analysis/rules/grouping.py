"""From flagged cells to findings: one per request, run of rows and set of layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.findings import Finding, Severity
from moeinspect.analysis.requests import request_evidence
from moeinspect.analysis.rules.runs import true_runs
from moeinspect.analysis.rules.view import TraceView

MAX_RUNS = 10_000
"""Beyond this many runs of one rule, the runs of one request become one finding."""


@dataclass(frozen=True, slots=True)
class CellRun:
    """Neighbouring rows of one request with the same flagged layers.

    `first` and `last` (exclusive) index rows of the file, `rows` rows of the request; `places` [m] are
    places on axis M, `layers` the absolute indices of the same layers; `count` is in cells. A `merged` run
    spans rows and layers that are not all flagged.
    """

    request: int
    first: int
    last: int
    rows: tuple[int, int]
    places: NDArray[np.int64]
    layers: tuple[int, ...]
    count: int
    merged: bool


def cell_runs(
    view: TraceView, cells: NDArray[np.bool_], kind: NDArray[np.int64] | None = None
) -> Iterator[CellRun]:
    """Merges flagged `cells` [R, M] into runs, in file order; rows of another `kind` [R] start a new run."""
    flagged = np.asarray(cells.any(axis=1), dtype=np.bool_)
    joined = _same_layers_as_before(view, cells, flagged)
    if kind is not None:
        joined[1:] &= kind[1:] == kind[:-1]
    starts, ends = true_runs(flagged, joined)
    merged = len(starts) > MAX_RUNS
    if merged:
        starts, ends = _spans_of_requests(view, flagged)
    for first, last in zip(starts.tolist(), ends.tolist(), strict=True):
        here = cells[first:last]
        places = np.flatnonzero(here.any(axis=0) if merged else here[0]).astype(np.int64)
        start = int(view.places.index[first])
        yield CellRun(
            request=int(view.places.request[first]),
            first=first,
            last=last,
            rows=(start, start + last - first),
            places=places,
            layers=tuple(view.layers[places].tolist()),
            count=int(here.sum()) if merged else len(here) * len(places),
            merged=merged,
        )


def _spans_of_requests(
    view: TraceView, flagged: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First and last-exclusive flagged row of each request that has one."""
    rows = np.flatnonzero(flagged).astype(np.int64)
    new = np.ones(len(rows), dtype=bool)
    new[1:] = np.diff(view.places.request[rows]) != 0
    starts = np.flatnonzero(new)
    return rows[starts], rows[np.append(starts[1:], len(rows)) - 1] + 1


def findings_of(
    view: TraceView,
    cells: NDArray[np.bool_],
    rule: str,
    severity: Severity,
    describe: Callable[[CellRun], tuple[str, Mapping[str, Any]]],
    kind: NDArray[np.int64] | None = None,
) -> list[Finding]:
    """One finding per run of `cells` [R, M]; `describe` says what is wrong there and gives the evidence."""
    findings = []
    for run in cell_runs(view, cells, kind):
        what, evidence = describe(run)
        if run.merged:
            what, evidence = f"{what} (many runs in one)", {**evidence, "merged": True}
        findings.append(
            Finding(
                rule=rule,
                severity=severity,
                message=f"{place_text(view, run)}: {what}",
                count=run.count,
                input=view.input,
                request=view.request_id(run.request),
                rows=run.rows,
                layers=run.layers,
                region=view.region(run.request, *run.rows),
                evidence={**request_evidence(view.trace, run.request), **evidence},
            )
        )
    return findings


def _same_layers_as_before(
    view: TraceView, cells: NDArray[np.bool_], flagged: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Flagged rows [R] that follow one of the same request with the same flagged layers."""
    joined = view.joined.copy()
    rows = np.flatnonzero(flagged)
    rows = rows[rows > 0]
    joined[rows] &= (cells[rows] == cells[rows - 1]).all(axis=1)
    return joined


def place_text(view: TraceView, run: CellRun) -> str:
    """The place of a run in words."""
    whole = len(run.layers) == len(view.layers)
    where = f"all {len(run.layers)} MoE layers" if whole and len(run.layers) > 1 else layers_text(run.layers)
    return f"{rows_text(run.rows)} ({view.region(run.request, *run.rows)}), {where}"


def rows_text(rows: tuple[int, int]) -> str:
    """`row 4` or `rows 4-9`, both ends included as people count."""
    first, last = rows
    return f"row {first}" if last - first == 1 else f"rows {first}-{last - 1}"


def layers_text(layers: tuple[int, ...]) -> str:
    """`layer 3` or `layers 0-2, 5`."""
    parts: list[str] = []
    start = 0
    for i in range(1, len(layers) + 1):
        if i == len(layers) or layers[i] != layers[i - 1] + 1:
            a, b = layers[start], layers[i - 1]
            parts.append(str(a) if a == b else f"{a}-{b}")
            start = i
    return f"layer{'s' if len(layers) > 1 else ''} {', '.join(parts)}"
