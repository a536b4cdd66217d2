"""`stale-rows`: rows that belong to another request, left in a slot or handed to the wrong one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.findings import Finding
from moeinspect.analysis.rules.coincidence import Coincidences
from moeinspect.analysis.rules.copies import MIN_ROWS, CopyJudge
from moeinspect.analysis.rules.grouping import CellRun, findings_of, rows_text
from moeinspect.analysis.rules.links import Links, cross_links, owner_links, points_at_the_copy
from moeinspect.analysis.rules.runs import run_bounds, true_runs
from moeinspect.analysis.rules.view import TraceView


def check_stale(view: TraceView) -> list[Finding]:
    """Runs of 2 or more rows that equal rows of another request under another token prefix.

    Three kinds of run are looked for: rows of the former owners of the KV slots, a stretch of another
    request row for row, and rows that each stand somewhere in other requests. Of two equal rows the copy is
    reported where the trace tells which it is, else both.
    """
    rows = view.whole_rows()
    coincidences = Coincidences(view, rows)
    owners, across = owner_links(view, rows), cross_links(view, coincidences)
    if not len(owners) and not len(across):
        return []
    judge = CopyJudge(view, coincidences)
    links = judge.by_former_owner(owners) + judge.stretches(across) + judge.anywhere(across)
    links = links.pick(points_at_the_copy(view, coincidences, links, owners))
    return _report(view, coincidences, links, owners)


def _report(view: TraceView, coincidences: Coincidences, links: Links, owners: Links) -> list[Finding]:
    source, chance = _per_row(view, coincidences, links)
    owned = np.zeros(len(view.ids), dtype=bool)
    owned[owners.row] = True

    def describe(run: CellRun) -> tuple[str, Mapping[str, Any]]:
        span = run.first + np.flatnonzero(source[run.first : run.last] >= 0)
        spans = _source_spans(view, source[span])
        return f"equal to {_source_text(spans)}, under other tokens", {
            "sources": spans[:4],
            "num_sources": len(spans),
            "former_owner": bool(owned[span].all()),
            "chance_log10": round(float(chance[span].min()), 1),
        }

    starts, ends = true_runs(source >= 0, view.joined)
    stale = np.zeros(len(source), dtype=bool)
    for first, last in zip(starts.tolist(), ends.tolist(), strict=True):
        stale[first:last] = last - first >= MIN_ROWS
    return findings_of(view, view.claim_rows(stale), "stale-rows", "warning", describe)


def _per_row(
    view: TraceView, coincidences: Coincidences, links: Links
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """A source row (-1: none) and the chance for each row [R]; the first link of a row counts.

    Links join the first rows of each (content, prefix); other rows with both the same share the verdict.
    """
    source = np.full(len(view.ids), -1, dtype=np.int64)
    chance = np.zeros(len(view.ids))
    source[links.row[::-1]] = links.source[::-1]
    np.minimum.at(chance, links.row, links.chance_log10)
    rows = np.flatnonzero(coincidences.rows)
    first = coincidences.first_row[rows]
    alone = source[rows] < 0
    source[rows[alone]], chance[rows[alone]] = source[first[alone]], chance[first[alone]]
    return source, chance


def _source_spans(view: TraceView, source: NDArray[np.int64]) -> list[dict[str, Any]]:
    """The rows that a run equals, as stretches of requests in the run's order."""
    joined = np.zeros(len(source), dtype=bool)
    joined[1:] = (np.diff(source) == 1) & view.joined[source[1:]]
    starts, ends = run_bounds(joined)
    places = view.places
    return [
        {
            "request": view.request_id(int(places.request[a])),
            "rows": [int(places.index[a]), int(places.index[a]) + n],
        }
        for a, n in zip(source[starts].tolist(), (ends - starts).tolist(), strict=True)
    ]


def _source_text(spans: list[dict[str, Any]]) -> str:
    first = spans[0]
    text = f"{rows_text((first['rows'][0], first['rows'][1]))} of request {first['request']}"
    return text + (f" and {len(spans) - 1} more places" if len(spans) > 1 else "")
