"""Which requests and rows a fault touches, and rows that nobody captured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from moeinspect.trace.columns import UNKNOWN
from moeinspect.trace.schema import Origin, RequestRecord, Validity
from moeinspect.trace.transport.fault import NoEffectError
from moeinspect.trace.transport.records import rows_taken


def some_requests(
    records: list[RequestRecord], rng: np.random.Generator, name: str, *, fewest_rows: int, share: float = 0.5
) -> list[int]:
    """Numbers of the requests that a fault touches: about `share` of those with so many real rows.

    Raises:
        NoEffectError: no request has that many rows.
    """
    able = [
        number
        for number, record in enumerate(records)
        if len(record.expert_ids) >= fewest_rows and (record.validity == Validity.REAL).all()
    ]
    if not able:
        raise NoEffectError(name, f"no request has {fewest_rows} captured rows")
    count = max(1, round(share * len(able)))
    return sorted(int(number) for number in rng.choice(able, size=count, replace=False))


def with_made_rows(record: RequestRecord, rows: NDArray[np.int64], ids: NDArray[np.int64]) -> RequestRecord:
    """The request with `ids` [n, L, K] in place of those of `rows` [n]; no weights and margins there."""
    changed = rows_taken(record, np.arange(len(record.expert_ids)))
    changed.expert_ids[rows] = ids
    for values in (changed.weights, changed.margin):
        if values is not None:
            values[rows] = np.nan
    return changed


def with_appended_rows(record: RequestRecord, count: int) -> RequestRecord:
    """The request with `count` rows more, copies of its last one that no forward of the engine computed."""
    n = len(record.expert_ids)
    longer = rows_taken(record, np.concatenate([np.arange(n), np.full(count, n - 1)]))
    longer.origin[n:] = Origin.IMPORTED
    for column in (longer.step, longer.slot):
        column[n:] = UNKNOWN
    for values in (longer.weights, longer.margin):
        if values is not None:
            values[n:] = np.nan
    return longer


def declared_missing(record: RequestRecord, rows: NDArray[np.int64]) -> RequestRecord:
    """The request with these rows [n] as an importer hands on rows of -1: "no id", and said to be missing."""
    changed = with_made_rows(record, rows, np.full((len(rows), *record.expert_ids.shape[1:]), -1))
    changed.validity[rows] = Validity.MISSING
    return changed


def without_rows(record: RequestRecord) -> RequestRecord:
    """The request with no row at all: the field was absent."""
    return replace(rows_taken(record, np.arange(0)))
