"""Rows cut for context-parallel ranks or packed sequences and put together wrongly: `cp-slice`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moeinspect.trace.schema import RequestRecord, Trace
from moeinspect.trace.slicing import NOTHING, ORDERS, Order, sliced_source
from moeinspect.trace.transport.fault import Apply, NoEffectError, fault_of_variants
from moeinspect.trace.transport.records import records_of, rows_taken, trace_of

_NAME = "cp-slice"


def rows_sliced(trace: Trace, num_ranks: int, order: Order) -> Trace:
    """Every request is cut for `num_ranks` context-parallel ranks and joined in a wrong order.

    Raises:
        NoEffectError: the order is the right one for every request, as where all fit one piece.
    """
    records = records_of(trace)
    sources = [sliced_source(len(record.expert_ids), num_ranks, order) for record in records]
    if all((source == np.arange(len(source))).all() for source in sources):
        raise NoEffectError(_NAME, f"no request has rows enough for {num_ranks} ranks")
    return trace_of(trace, [_taken(record, source) for record, source in zip(records, sources, strict=True)])


def rows_packed(
    trace: Trace, sequences: int, *, multiple: int = 1, late: bool = False, keep: bool = True
) -> Trace:
    """Packs of `sequences` requests, whose rows are read at the places of their tokens' padding.

    Tokens are padded to a `multiple` in front of the next sequence, and count the last one, which has no
    row; rows stand one behind the other. So rows are read too early, or, `late`, where rows are padded and
    tokens are not, too late: by more with each sequence, and across the seams. `keep` False: what lies
    beyond the end of the pack has no row instead of zeros.

    Raises:
        NoEffectError: no pack has two requests.
    """
    records = records_of(trace)
    if sequences < 2 or len(records) < 2:
        raise NoEffectError(_NAME, "one sequence has no seam", "take a trace of several requests")
    made: list[RequestRecord] = []
    for first in range(0, len(records), sequences):
        pack = records[first : first + sequences]
        counts = np.asarray([len(record.expert_ids) for record in pack])
        padding = -(-(counts + 1) // multiple) * multiple - counts
        shift = np.concatenate([[0], np.cumsum(padding)[:-1]]) * (-1 if late else 1)
        starts = np.concatenate([[0], np.cumsum(counts)])
        joined = _concatenated(pack)
        for number, record in enumerate(pack):
            source = np.arange(counts[number]) + starts[number] + shift[number]
            outside = (source < 0) | (source >= starts[-1])
            if not keep:
                source = source[~outside | (np.arange(len(source)) == 0)]
                outside = (source < 0) | (source >= starts[-1])
            made.append(_with_rows_of(record, joined, np.where(outside, NOTHING, source)))
    return trace_of(trace, made)


def _taken(record: RequestRecord, source: NDArray[np.int64]) -> RequestRecord:
    taken = rows_taken(record, np.maximum(source, 0))
    return _zeroed(taken, source == NOTHING)


def _zeroed(record: RequestRecord, rows: NDArray[np.bool_]) -> RequestRecord:
    for values in (record.expert_ids, record.weights, record.margin):
        if values is not None:
            values[rows] = 0
    return record


def _concatenated(pack: list[RequestRecord]) -> dict[str, NDArray[np.generic]]:
    """Ids, weights and margins of all rows of a pack, as far as each request has them."""
    joined = {}
    for name in ("expert_ids", "weights", "margin"):
        parts = [getattr(record, name) for record in pack]
        if all(part is not None for part in parts):
            joined[name] = np.concatenate(parts)
    return joined


def _with_rows_of(
    record: RequestRecord, joined: dict[str, NDArray[np.generic]], source: NDArray[np.int64]
) -> RequestRecord:
    """The request with rows of its pack; what stands beside the ids is the request's own."""
    taken = rows_taken(record, np.minimum(np.arange(len(source)), len(record.expert_ids) - 1))
    for name, values in joined.items():
        setattr(taken, name, values[np.maximum(source, 0)])
    return _zeroed(taken, source == NOTHING)


def _sliced(order: Order, num_ranks: int) -> Apply:
    return lambda trace, rng: rows_sliced(trace, num_ranks, order)


def _packed(sequences: int, *, multiple: int = 1, late: bool = False, keep: bool = True) -> Apply:
    return lambda trace, rng: rows_packed(trace, sequences, multiple=multiple, late=late, keep=keep)


CP_SLICE = fault_of_variants(
    _NAME,
    "verl, slime, ms-swift#9804",
    {
        **{f"{order}-{ranks}": _sliced(order, ranks) for order in ORDERS for ranks in (2, 4, 8)},
        "pack": _packed(4),
        "pack-late": _packed(3, late=True),
        "pack-multiple": _packed(8, multiple=8),
        "pack-drop": _packed(4, multiple=4, keep=False),
    },
)
