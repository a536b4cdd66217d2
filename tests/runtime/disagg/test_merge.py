from dataclasses import replace

import numpy as np
import pytest

from moeinspect.errors import EngineError
from moeinspect.runtime.capture.collector import CollectedRows
from moeinspect.runtime.disagg.merge import merge_rows


def rows(start, count, worker, layers=3, weights=True, dtype=np.uint8):
    ids = np.arange(count * layers * 2).reshape(count, layers, 2).astype(dtype)
    return CollectedRows(
        start=start,
        expert_ids=ids,
        origin=np.full(count, worker, np.uint8),
        worker=np.full(count, worker, np.uint16),
        step=np.arange(count, dtype=np.int32),
        slot=np.arange(count, dtype=np.int32) + 8,
        weights=np.ones(ids.shape, np.float32) * worker if weights else None,
    )


def test_prompt_rows_come_from_prefill_and_the_rest_from_decode():
    merged = merge_rows(("r", 0), rows(0, 5, 0), rows(5, 3, 1), prompt_len=5, output_len=4)
    assert merged.start == 0 and len(merged) == 8
    assert merged.worker.tolist() == [0] * 5 + [1] * 3
    assert merged.weights.reshape(8, -1)[:, 0].tolist() == [0.0] * 5 + [1.0] * 3
    assert (merged.expert_ids[5:] == rows(5, 3, 1).expert_ids).all()


def test_surplus_rows_of_the_decode_side_are_handed_on_only_where_they_may_be_there():
    sides = rows(0, 5, 0), rows(5, 6, 1)
    assert len(merge_rows(("r", 0), *sides, 5, 4, may_be_more=True)) == 11
    with pytest.raises(EngineError, match=r"decode returned \[5, 11\), not \[5, 8\)"):
        merge_rows(("r", 0), *sides, 5, 4)


@pytest.mark.parametrize(
    "prefill, decode, message",
    [
        (rows(1, 5, 0), rows(5, 3, 1), r"prefill returned \[1, 6\), not \[0, 5\)"),
        (rows(0, 4, 0), rows(5, 3, 1), r"prefill returned \[0, 4\)"),
        (rows(0, 5, 0), rows(4, 4, 1), r"decode returned \[4, 8\), not \[5, 8\)"),
        (rows(0, 5, 0), rows(5, 2, 1), r"decode returned \[5, 7\)"),
        (rows(0, 5, 0), rows(5, 3, 1, layers=2), "ids a row"),
        (rows(0, 5, 0), rows(5, 3, 1, dtype=np.uint16), "expert_ids are uint8 and uint16"),
        (rows(0, 5, 0), rows(5, 3, 1, weights=False), "only one of them returned weights"),
        (
            replace(rows(0, 5, 0), margin=np.ones((5, 3), np.float32)),
            rows(5, 3, 1),
            "only one of them returned margin",
        ),
    ],
)
def test_sides_that_do_not_fit_are_refused(prefill, decode, message):
    with pytest.raises(EngineError, match=message):
        merge_rows(("r", 0), prefill, decode, prompt_len=5, output_len=4)
