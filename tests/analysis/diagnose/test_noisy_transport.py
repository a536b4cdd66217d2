"""Transport faults where rows repeat and the baseline is rounded otherwise: shallow models, few tokens."""

from dataclasses import replace

import numpy as np
import pytest
from analysis.toymodel import ToyStyle, toy_trace
from analysis.tracefactory import make_facts

from moeinspect.analysis.compare.diff import diff_report
from moeinspect.trace.transport import TRANSPORT_FAULTS
from moeinspect.trace.transport.filler import filled
from moeinspect.trace.transport.imported import imported
from moeinspect.trace.transport.joins import joined_twice
from moeinspect.trace.transport.records import records_of, trace_of

STYLE = ToyStyle(vocab=40, class_noise=0.3, context=0.0)
SHALLOW = imported(toy_trace(make_facts(4, 32, 4), STYLE, 3, 8))
KINDS = ("swapped-8", "striped-2", "striped-8", "unstriped-2", "unstriped-4", "first-rank-8")
SLICES = TRANSPORT_FAULTS["cp-slice"].shapes


def rounded(trace, rate, seed=0):
    """The trace with the last expert of some cells exchanged."""
    rng = np.random.default_rng(seed)
    ids = trace.rows.expert_ids.astype(np.int64)
    row, layer = np.nonzero(rng.random(ids.shape[:2]) < rate)
    other = rng.integers(0, trace.model.num_experts, len(row))
    is_new = (ids[row, layer] != other[:, None]).all(axis=1)
    ids[row[is_new], layer[is_new], -1] = other[is_new]
    rows = replace(trace.rows, expert_ids=ids.astype(trace.rows.expert_ids.dtype))
    return replace(trace, rows=rows, run=replace(trace.run, deterministic=False))


NOISY = rounded(SHALLOW, 0.08)


def first_cause(a, b):
    return diff_report(a, b).diagnoses[0].cause.split("|")


@pytest.mark.parametrize(("seed", "baseline"), [(0, SHALLOW), (1, NOISY), (2, SHALLOW), (3, NOISY)])
def test_a_beginning_that_comes_again_is_joined_however_soon(seed, baseline):
    changed = joined_twice(SHALLOW, np.random.default_rng(seed), cut=True)
    assert first_cause(changed, baseline) == ["double-concat"]


@pytest.mark.parametrize("filler", ["arange", "running"])
@pytest.mark.parametrize("place", ["tail", "prompt", "between"])
def test_two_rows_of_a_numbering_are_filler_among_rounded_rows(filler, place):
    changed = filled(SHALLOW, np.random.default_rng(1), filler=filler, place=place, rows=2)
    assert first_cause(changed, NOISY) == ["filler-as-real"]


@pytest.mark.parametrize("name", KINDS)
def test_slices_are_told_where_many_rows_are_equal(name):
    changed = SLICES[name](SHALLOW, np.random.default_rng(2))
    assert first_cause(changed, NOISY) == ["cp-slice"]


@pytest.mark.parametrize("rate", [0.001, 0.01, 0.05, 0.1])
def test_rounding_alone_has_no_name_of_a_fault(rate):
    for seed in range(2):
        report = diff_report(rounded(SHALLOW, rate, seed), SHALLOW)
        assert {one.cause for one in report.diagnoses} <= {"numerics", "unknown"}


def test_one_expert_of_one_prompt_row_is_no_padding():
    ids = SHALLOW.rows.expert_ids.copy()
    ids[1, 2, 0] = next(e for e in range(32) if e not in ids[1, 2])
    changed = replace(SHALLOW, rows=replace(SHALLOW.rows, expert_ids=ids))
    assert "padded-rows" not in first_cause(changed, SHALLOW)


def test_a_request_that_is_not_there_is_missing():
    kept = trace_of(SHALLOW, records_of(SHALLOW)[2:])
    report = diff_report(kept, SHALLOW)
    assert [one.cause for one in report.diagnoses] == ["missing-request"]
    assert [f.rule for f in report.findings if f.severity == "error"] == ["only-in-b", "only-in-b"]
    assert first_cause(SHALLOW, kept) != ["missing-request"]


def test_a_request_that_is_not_there_is_not_the_cause_beside_another_one():
    kept = trace_of(SHALLOW, records_of(SHALLOW)[2:])
    changed = joined_twice(kept, np.random.default_rng(0), cut=True)
    assert [one.cause for one in diff_report(changed, SHALLOW).diagnoses] == ["double-concat"]
