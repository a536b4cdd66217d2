"""Rounding is called numerics, a fault never is."""

from dataclasses import replace

import numpy as np
import pytest
from analysis.compare.logitpairs import logit_pair
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinspect.analysis.compare import compare, diff_report
from moeinspect.trace.schema import Trace

FP32_NOISE, BF16_NOISE = 3e-6, 0.015


def swap_last_expert(rows: slice, layer: int, experts: int = 32):
    """An edit that replaces the k-th expert by one that was not chosen."""

    def edit(ids):
        for row in range(*rows.indices(len(ids))):
            others = np.setdiff1d(np.arange(experts), ids[row, layer])
            ids[row, layer, -1] = others[row % len(others)]

    return edit


def nudge(pair: tuple[Trace, Trace], margin: float, *, layer: int = 0) -> tuple[Trace, Trace]:
    """Swaps the k-th expert of one cell of A and says in B that its margin is `margin`."""
    a, b = pair
    ids, margins = a.rows.expert_ids.copy(), b.rows.margin.copy()
    swap_last_expert(slice(7, 8), layer)(ids)
    margins[7, layer] = margin
    return replace(a, rows=replace(a.rows, expert_ids=ids)), replace(b, rows=replace(b.rows, margin=margins))


def test_one_flip_at_a_small_margin_is_numerics_and_exits_0():
    report = diff_report(*nudge(logit_pair(), 1e-6))
    assert (report.verdict, report.strict) == ("numerics", False)
    assert report.counts["near_ties"] == report.counts["set_mismatch_cells"] == 1
    assert [d.cause for d in report.diagnoses] == ["numerics"]
    assert {f.severity for f in report.findings} == {"note"}


@pytest.mark.parametrize(("dtype", "margin"), [("float32", 1e-4), ("bfloat16", 0.5), ("float32", np.inf)])
def test_one_flip_at_a_margin_beyond_the_dtype_is_a_finding(dtype, margin):
    report = diff_report(*nudge(logit_pair(dtype=dtype), margin))
    assert report.verdict == "findings"
    assert report.counts["near_ties"] == 0


def test_a_margin_that_is_no_number_excuses_nothing():
    assert diff_report(*nudge(logit_pair(), np.nan)).verdict == "findings"


def test_without_margins_there_is_no_near_tie_verdict_and_the_report_says_so():
    a, b = nudge(logit_pair(), 1e-6)
    report = diff_report(a, replace(b, rows=replace(b.rows, margin=None)))
    assert report.verdict == "findings"
    assert "no-margins" in {f.rule for f in report.findings if f.severity == "note"}
    assert all(one.extra["near_tie"] is None for one in report.layers)


def test_margins_of_either_trace_count_and_both_have_to_be_small():
    a, b = nudge(logit_pair(), 1e-6)
    swapped = diff_report(b, a)
    assert swapped.verdict == "numerics"
    wide = np.full_like(b.rows.margin, 1.0)
    assert diff_report(replace(a, rows=replace(a.rows, margin=wide)), b).verdict == "findings"


def test_two_traces_that_claim_bit_exactness_on_one_machine_exit_1_on_a_near_tie():
    report = diff_report(*nudge(logit_pair(machine_keys=("same", "same")), 1e-6))
    assert (report.verdict, report.strict) == ("numerics", True)


@pytest.mark.parametrize("change", [{"deterministic": False}, {"machine_key": "other"}, {"machine_key": ""}])
def test_bit_exactness_is_not_asked_of_other_pairs(change):
    a, b = nudge(logit_pair(machine_keys=("same", "same")), 1e-6)
    assert not diff_report(replace(a, run=replace(a.run, **change)), b).strict


def test_strict_makes_a_near_tie_exit_1():
    assert diff_report(*nudge(logit_pair(), 1e-6), strict=True).strict


def test_a_flip_with_two_experts_replaced_is_a_finding_at_any_margin():
    a, b = nudge(logit_pair(), 0.0)
    ids = a.rows.expert_ids.copy()
    ids[7, 0, 0] = np.setdiff1d(np.arange(32), np.r_[ids[7, 0], b.rows.expert_ids[7, 0]])[0]
    assert diff_report(replace(a, rows=replace(a.rows, expert_ids=ids)), b).verdict == "findings"


def test_a_cell_with_a_repeated_id_is_no_near_tie():
    a, b = nudge(logit_pair(), 0.0)
    ids = a.rows.expert_ids.copy()
    ids[7, 0, -1] = ids[7, 0, 0]
    assert compare(replace(a, rows=replace(a.rows, expert_ids=ids)), b).ties.near_tie.sum() == 0


@pytest.mark.parametrize("seed", range(5))
def test_rounding_of_bf16_is_numerics(seed):
    a, b = logit_pair(noise=0.01, cascade=0.01, dtype="bfloat16", seed=seed, requests=6, slot_order="unknown")
    report = diff_report(a, b)
    assert report.counts["set_mismatch_cells"] > 20
    assert report.verdict == "numerics"


def test_flips_that_follow_a_flip_of_fp32_are_numerics():
    report = diff_report(*logit_pair(noise=1e-5, cascade=0.03, requests=40, slot_order="unknown"))
    assert report.counts["near_ties"] == 2
    assert report.counts["after_flip_cells"] == 8
    assert report.verdict == "numerics"


def test_a_flip_after_a_near_tie_may_have_a_wider_margin_but_not_before_one():
    a, b = logit_pair(margins=True)
    ids, margins = a.rows.expert_ids.copy(), b.rows.margin.copy()
    for row, layer, margin in ((5, 1, 1e-6), (9, 3, 0.02)):
        swap_last_expert(slice(row, row + 1), layer)(ids)
        margins[row, layer] = margin
    after = replace(a, rows=replace(a.rows, expert_ids=ids)), replace(b, rows=replace(b.rows, margin=margins))
    assert diff_report(*after).verdict == "numerics"
    assert diff_report(*after).counts["after_flip_cells"] == 1
    early = (
        replace(a, rows=replace(a.rows, expert_ids=ids[::-1])),
        replace(b, rows=replace(b.rows, margin=margins[::-1], expert_ids=b.rows.expert_ids[::-1])),
    )
    assert diff_report(*early).verdict == "findings"


def test_nothing_is_excused_after_a_flip_that_is_no_near_tie():
    a, b = nudge(logit_pair(), 1.0)
    ids, margins = a.rows.expert_ids.copy(), b.rows.margin.copy()
    swap_last_expert(slice(9, 10), 3)(ids)
    margins[9, 3] = 0.02
    pair = replace(a, rows=replace(a.rows, expert_ids=ids)), replace(b, rows=replace(b.rows, margin=margins))
    report = diff_report(*pair)
    assert report.counts["set_mismatch_cells"] == 2
    assert report.counts["after_flip_cells"] == 0


@pytest.mark.parametrize("flips", [1, 30])
def test_wrong_experts_after_a_near_tie_are_not_excused_where_they_ignore_the_gaps(flips):
    a, b = nudge(logit_pair(rows=80), 1e-6)
    ids = a.rows.expert_ids.copy()
    median = np.median(b.rows.margin[:, 5])
    usual = np.flatnonzero((b.rows.margin[:80, 5] > 0.8 * median) & (b.rows.margin[:80, 5] < 2 * median))
    for row in usual[usual > 7][:flips]:
        swap_last_expert(slice(row, row + 1), 5)(ids)
    report = diff_report(replace(a, rows=replace(a.rows, expert_ids=ids)), b)
    assert report.counts["set_mismatch_cells"] > 1
    assert report.verdict == "findings"


def test_a_layer_that_ignores_the_gaps_stands_out_among_layers_that_do_not():
    a, b = logit_pair(noise=0.01, cascade=0.01, dtype="bfloat16", requests=6, slot_order="unknown")
    assert diff_report(a, b).verdict == "numerics"
    ids = a.rows.expert_ids.copy()
    median = np.median(b.rows.margin[:, 5])
    usual = np.flatnonzero((b.rows.margin[:, 5] > median) & (b.rows.margin[:, 5] < 2 * median))
    flipped = compare(a, b).cells.set_mismatch
    below = np.asarray([flipped[row - row % 40 : row + 1, :5].any() for row in range(len(flipped))])
    for row in usual[below[usual] & ~flipped[usual, 5]][:30]:
        swap_last_expert(slice(row, row + 1), 5)(ids)
    report = diff_report(replace(a, rows=replace(a.rows, expert_ids=ids)), b)
    assert report.verdict == "findings"
    assert report.layers[5].extra["near_tie"] < 1.0


FAULTS = {
    "zero rows": lambda ids, rng: ids.__setitem__(slice(5, 9), 0),
    "a random layer": lambda ids, rng: ids.__setitem__(
        (slice(None), 3), rng.permuted(np.tile(np.arange(32), (len(ids), 1)), axis=1)[:, :4]
    ),
    "a random row": lambda ids, rng: ids.__setitem__(
        11, rng.permuted(np.tile(np.arange(32), (ids.shape[1], 1)), axis=1)[:, :4]
    ),
    "shifted rows": lambda ids, rng: ids.__setitem__(slice(20, 39), ids[21:40].copy()),
    "swapped layers": lambda ids, rng: ids.__setitem__((slice(None), [2, 3]), ids[:, [3, 2]].copy()),
    "a constant column": lambda ids, rng: ids.__setitem__((Ellipsis, 3), 31),
    "a constant column in the last layer": lambda ids, rng: ids.__setitem__((slice(None), -1, 3), 31),
    "renamed experts": lambda ids, rng: ids.__setitem__(Ellipsis, (ids + 1) % 32),
    "one wrong expert in the last layer": lambda ids, rng: swap_last_expert(slice(3, 40), 5)(ids),
}


@settings(max_examples=40, deadline=None)
@given(
    fault=st.sampled_from(sorted(FAULTS)),
    noise=st.sampled_from([(0.0, "float32"), (FP32_NOISE, "float32"), (BF16_NOISE, "bfloat16")]),
    seed=st.integers(0, 1000),
)
def test_no_fault_passes_as_numerics_however_noisy_the_run(fault, noise, seed):
    rng = np.random.default_rng(seed)
    pair = logit_pair(
        noise=noise[0],
        cascade=0.03 if noise[0] else 0.0,
        dtype=noise[1],
        seed=seed,
        requests=2,
        slot_order="unknown",
        edit=lambda ids: FAULTS[fault](ids, rng),
    )
    assert diff_report(*pair).verdict == "findings"


def test_an_exchange_of_experts_with_equal_weights_is_a_tie_and_of_others_a_warning():
    a, b = logit_pair(weights=True)
    ids, weights_a, weights_b = (x.copy() for x in (a.rows.expert_ids, a.rows.weights, b.rows.weights))
    ids[4, 2, [0, 1]], weights_a[4, 2, [0, 1]] = ids[4, 2, [1, 0]], weights_a[4, 2, [1, 0]]
    far = replace(a, rows=replace(a.rows, expert_ids=ids, weights=weights_a)), b
    report = diff_report(*far)
    assert report.verdict == "findings"
    assert [f.severity for f in report.findings if f.rule == "order-mismatch"] == ["warning"]
    weights_a[4, 2, :2] = weights_b[4, 2, :2] = weights_b[4, 2, :2].mean()
    near = (
        replace(a, rows=replace(a.rows, expert_ids=ids, weights=weights_a)),
        replace(b, rows=replace(b.rows, weights=weights_b)),
    )
    assert diff_report(*near).verdict == "numerics"


def test_without_weights_a_few_exchanges_of_neighbours_are_ties_and_shuffled_cells_are_not():
    a, b = logit_pair()
    few = a.rows.expert_ids.copy()
    few[4, 2, [0, 1]] = few[4, 2, [1, 0]]
    assert diff_report(replace(a, rows=replace(a.rows, expert_ids=few)), b).verdict == "numerics"
    ascending = np.sort(a.rows.expert_ids, axis=2)
    assert diff_report(replace(a, rows=replace(a.rows, expert_ids=ascending)), b).verdict == "findings"
    margins_gone = replace(b, rows=replace(b.rows, margin=None))
    assert diff_report(replace(a, rows=replace(a.rows, expert_ids=few)), margins_gone).verdict == "findings"
