"""Rows that nobody captured."""

import numpy as np
import pytest
from analysis.tracefactory import make_facts, make_records, make_trace

from moeinspect.trace.schema import Validity
from moeinspect.trace.transport import NoEffectError
from moeinspect.trace.transport.filler import (
    FILLERS,
    PLACES,
    filled,
    partly_absent,
    without_payload,
)

FACTS = make_facts(3, 16, 4)


def healthy():
    return make_trace(make_records(FACTS, 6), FACTS)


def held_ids(trace, request):
    """Ids of one request, with the values that could not be stored."""
    ids = trace.rows.expert_ids.astype(np.int64)
    cells = trace.rows.invalid_cells
    ids[cells.row, cells.layer, cells.slot] = cells.value
    return ids[trace.row_range(request)]


@pytest.mark.parametrize("filler", FILLERS)
@pytest.mark.parametrize("place", PLACES)
def test_filler_stands_in_one_run_where_it_was_asked_for(filler, place):
    trace = healthy()
    if (filler, place) == ("copied", "request"):
        with pytest.raises(NoEffectError, match="no row that could be copied"):
            filled(trace, np.random.default_rng(0), filler=filler, place=place)
        return
    changed = filled(trace, np.random.default_rng(0), filler=filler, place=place, share=1.0, rows=5)
    for request in range(len(trace.requests)):
        ids, held = held_ids(trace, request), held_ids(changed, request)
        n, count = len(ids), len(ids) if place == "request" else 5
        same = np.zeros(len(held), dtype=bool)
        same[:n] = (held[:n] == ids).all(axis=(1, 2))
        at = np.flatnonzero(~same)
        assert len(at) == count and at[-1] - at[0] == count - 1
        expected = {
            "zeros": np.zeros(12),
            "minus-one": np.full(12, -1),
            "arange": np.tile(np.arange(4), 3),
            "running": np.arange(count * 12) % 16,
            "copied": held[at[0] - 1].ravel(),
        }[filler]
        assert np.array_equal(
            held[at].reshape(count, 12), np.broadcast_to(expected.reshape(-1, 12), (count, 12))
        )
        first = {"tail": n - 5, "padding": n, "prompt": int(filler == "copied"), "request": 0}.get(
            place, at[0]
        )
        assert at[0] == first
    real = changed.rows.validity == Validity.REAL
    assert real.all() or filler == "minus-one"


@pytest.mark.parametrize("part", ["layers", "slots", "cut"])
def test_partly_absent_rows_hold_real_ids_beside(part):
    trace = healthy()
    changed = partly_absent(trace, np.random.default_rng(0), part=part, share=1.0)
    invalid = changed.rows.validity == Validity.INVALID
    assert invalid.any()
    for request in range(len(trace.requests)):
        ids, held = held_ids(trace, request), held_ids(changed, request)
        rows = changed.row_range(request)
        absent = held == -1
        mixed = absent.any(axis=(1, 2)) & ~absent.all(axis=(1, 2))
        assert np.array_equal(mixed, invalid[rows])
        real = ~absent & (changed.rows.validity[rows] != Validity.MISSING)[:, None, None]
        assert np.array_equal(held[real], ids[real])
        if part == "cut":
            assert mixed.sum() == 1
        elif part == "layers":
            assert (absent[mixed].any(axis=2) == absent[mixed].all(axis=2)).all()
        else:
            assert absent[mixed].any(axis=(0, 1)).tolist() == sorted(absent[mixed].any(axis=(0, 1)).tolist())


def test_absent_fields_leave_no_row_and_sentinels_declare_all():
    trace = healthy()
    absent = without_payload(trace, np.random.default_rng(0), share=0.5)
    assert np.count_nonzero(absent.requests.num_rows == 0) == 3
    declared = without_payload(trace, np.random.default_rng(0), absence="sentinel", share=0.5)
    missing = declared.rows.validity == Validity.MISSING
    assert [missing[declared.row_range(i)].all() for i in range(6)].count(True) == 3
    assert np.array_equal(declared.rows.expert_ids[~missing], trace.rows.expert_ids[~missing])


def test_weights_of_filler_are_gone():
    records = make_records(FACTS, 6)
    for record in records:
        record.weights = np.ones(record.expert_ids.shape, dtype=np.float32)
    trace = make_trace(records, FACTS)
    changed = filled(trace, np.random.default_rng(0), filler="zeros", place="tail", share=1.0)
    zero = ~changed.rows.expert_ids.any(axis=(1, 2))
    assert np.array_equal(np.isnan(changed.rows.weights).all(axis=(1, 2)), zero)
