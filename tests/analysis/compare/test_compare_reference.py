"""The vectorised comparison finds exactly what plain loops over sets find."""

import numpy as np
from analysis.compare.tracepairs import Expected, expected, trace_pairs
from hypothesis import given, settings

from moeinspect.analysis.compare import Comparison, compare
from moeinspect.errors import InputError


def cells_of(comparison: Comparison, mask: np.ndarray) -> set[tuple[int, int, int]]:
    alignment = comparison.alignment
    return {
        (int(alignment.pair[row]), int(alignment.position[row]), int(alignment.layers[place]))
        for row, place in zip(*np.nonzero(mask), strict=True)
    }


@settings(max_examples=400, deadline=None)
@given(trace_pairs())
def test_pairs_rows_and_cells_are_those_of_the_loops(pair):
    a, b = pair
    exact = a.run.machine_key != ""
    want = expected(a, b, None if exact else 1e-5)
    if not want.cells:
        try:
            compare(a, b)
        except InputError as error:
            assert "nothing to compare" in str(error)
        else:
            raise AssertionError("a comparison of nothing was accepted")
        return
    comparison = compare(a, b)
    check_rows(comparison, want)
    cells = comparison.cells
    assert cells_of(comparison, cells.set_mismatch) == want.set_mismatch
    if cells.order_mismatch is None:
        assert not want.order_mismatch
    else:
        assert cells_of(comparison, cells.order_mismatch) == want.order_mismatch
    if b.rows.weights is None:
        assert cells.weight_mismatch is None
    else:
        distinct = {key for key in want.cells if key not in want.set_mismatch} & whole_cells(comparison)
        assert cells_of(comparison, cells.weight_mismatch) & distinct == want.weight_mismatch


def check_rows(comparison: Comparison, want: Expected) -> None:
    alignment = comparison.alignment
    assert len(alignment) == want.rows_compared
    pair_rows = alignment.pair_rows
    assert {(n, p) for n, rows in enumerate(pair_rows) for p in rows.only_a.tolist()} == want.only_a
    assert {(n, p) for n, rows in enumerate(pair_rows) for p in rows.only_b.tolist()} == want.only_b
    assert sum(rows.not_comparable for rows in pair_rows) == want.not_comparable
    assert sum(rows.not_real for rows in pair_rows) == want.not_real
    assert len(alignment.pairing.only_a) == want.requests_only_a
    assert len(alignment.pairing.only_b) == want.requests_only_b
    overlap = comparison.cells.overlap / comparison.a.model.top_k
    got = {
        (int(alignment.pair[row]), int(alignment.position[row]), int(alignment.layers[place])): share
        for (row, place), share in np.ndenumerate(overlap)
    }
    assert got == want.cells


def whole_cells(comparison: Comparison) -> set[tuple[int, int, int]]:
    """Cells of K different ids: only there is a weight's expert known."""
    alignment = comparison.alignment
    ids = comparison.a.rows.expert_ids[alignment.a_row][:, alignment.a_axis]
    ordered = np.sort(ids, axis=2)
    return cells_of(comparison, (np.diff(ordered, axis=2) != 0).all(axis=2))
