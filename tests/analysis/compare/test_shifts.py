"""Shifted rows and layers and renamed experts are found, and are not seen where they are not."""

from dataclasses import replace

import numpy as np
import pytest
from analysis.compare.logitpairs import logit_pair
from analysis.tracefactory import make_facts, make_records, make_trace
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinspect.analysis.compare import diff_report

FACTS = make_facts(6, 32, 4)


def pair(change, facts=FACTS, count=3, **options):
    """A healthy trace with `change(ids, request)` applied to each request's ids, and the original."""
    records = make_records(facts, count, **options)
    changed = []
    for number, record in enumerate(records):
        ids = record.expert_ids.copy()
        change(ids, number)
        changed.append(replace(record, expert_ids=ids))
    return make_trace(changed, facts), make_trace(records, facts)


def found(report, rule):
    return [f for f in report.findings if f.rule == rule]


@pytest.mark.parametrize("lag", [-9, -4, -3, -2, -1, 1, 2, 3, 7])
def test_a_lag_is_found_with_its_sign_and_the_rows_it_covers(lag):
    def change(ids, request):
        if request == 1:
            source = np.arange(10, 30)
            ids[source] = ids[source + lag].copy()

    report = diff_report(*pair(change))
    (shift,) = found(report, "shifted-rows")
    assert (shift.request, shift.rows) == ("r1", (10, 30))
    assert shift.evidence["lag"] == lag
    assert shift.evidence["agreement"] == 1.0
    assert shift.evidence["agreement_unshifted"] < 0.1
    assert shift.count == report.counts["set_mismatch_cells"]


def test_each_segment_has_its_own_lag_and_the_seam_at_the_prompts_end_is_told():
    def change(ids, request):
        ids[5:15] = ids[6:16].copy()
        ids[24:39] = ids[23:38].copy()

    shifts = found(diff_report(*pair(change, count=1)), "shifted-rows")
    assert [(f.rows, f.evidence["lag"]) for f in shifts] == [((5, 15), 1), ((24, 39), -1)]
    assert [f.evidence["seam_at_prompt_end"] for f in shifts] == [False, True]


def test_a_shift_survives_rows_that_are_equal_anyway_and_rounding():
    def change(ids, request):
        ids[10:38] = ids[11:39].copy()
        for row in (15, 25):
            ids[row, 2, 0] = np.setdiff1d(np.arange(32), ids[row, 2])[0]

    (shift,) = found(diff_report(*pair(change, count=1)), "shifted-rows")
    assert shift.rows == (10, 38)
    assert 0.95 < shift.evidence["agreement"] < 1


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), share=st.sampled_from([0.01, 0.3, 1.0]))
def test_random_mismatches_are_no_shift_and_no_renaming(seed, share):
    rng = np.random.default_rng(seed)

    def change(ids, request):
        for row, layer in np.argwhere(rng.random(ids.shape[:2]) < share):
            ids[row, layer] = rng.permutation(32)[:4]

    report = diff_report(*pair(change))
    assert not {f.rule for f in report.findings} & {"shifted-rows", "shifted-layers", "permuted-ids"}


def test_two_rows_of_a_one_layer_model_are_too_few_to_call_a_shift():
    facts = make_facts(1, 32, 4)

    def change(ids, request):
        ids[10:12] = ids[11:13].copy()

    assert not found(diff_report(*pair(change, facts)), "shifted-rows")


@pytest.mark.parametrize("shift", [-2, -1, 1, 2])
def test_shifted_layers_are_found_with_their_sign(shift):
    def change(ids, request):
        held = slice(max(0, -shift), 6 - max(0, shift))
        ids[:, held] = ids[:, max(0, shift) : 6 - max(0, -shift)].copy()

    (one,) = found(diff_report(*pair(change)), "shifted-layers")
    assert one.evidence["shift"] == shift
    assert one.layers == tuple(range(max(0, -shift), 6 - max(0, shift)))
    assert one.evidence["agreement"] == 1.0


def test_one_layer_that_holds_its_neighbours_rows_is_a_shifted_layer():
    def change(ids, request):
        ids[:, 3] = ids[:, 2]

    (one,) = found(diff_report(*pair(change)), "shifted-layers")
    assert (one.layers, one.evidence["shift"]) == ((3,), -1)


def test_layers_are_shifted_among_the_moe_layers_of_a_model_with_dense_ones():
    facts = make_facts(7, 32, 4, layer_axis="all", moe_layers=[1, 3, 5, 6])

    def change(ids, request):
        ids[:, [3, 5, 6]] = ids[:, [1, 3, 5]].copy()

    (one,) = found(diff_report(*pair(change, facts)), "shifted-layers")
    assert (one.layers, one.evidence["shift"]) == ((3, 5, 6), -1)


@pytest.mark.parametrize("moved", [2, 5, 32])
def test_renamed_experts_are_found_per_layer_with_the_mapping(moved):
    rng = np.random.default_rng(1)
    mapping = np.arange(32)
    chosen = rng.permutation(32)[:moved]
    mapping[chosen] = np.roll(chosen, 1)

    def change(ids, request):
        ids[:, 4] = mapping[ids[:, 4]]

    report = diff_report(*pair(change, count=12))
    (one,) = found(report, "permuted-ids")
    assert one.layers == (4,)
    (layer,) = one.evidence["layers"]
    assert layer["agreement"] == 1.0
    assert layer["moved"] == moved
    back = {int(new): int(old) for old, new in enumerate(mapping)}
    assert all(back[source] == target for source, target in layer["mapping"])
    assert [d.cause for d in report.diagnoses] == ["physical-ids"]


def test_renaming_is_found_in_spite_of_rounding_and_of_slot_order():
    a, b = logit_pair(noise=0.01, dtype="bfloat16", requests=8, slot_order="unknown")
    mapping = np.random.default_rng(2).permutation(32)
    ids = a.rows.expert_ids.copy()
    ids[:, 1] = np.sort(mapping[ids[:, 1]], axis=1)
    report = diff_report(replace(a, rows=replace(a.rows, expert_ids=ids)), b)
    (one,) = found(report, "permuted-ids")
    assert one.layers == (1,)
    assert report.verdict == "findings"


def test_a_padding_id_beyond_the_experts_is_no_expert_to_rename():
    def change(ids, request):
        ids[::2, 4] = 255

    report = diff_report(*pair(change, count=6))
    assert not found(report, "permuted-ids")
    assert report.verdict == "findings"
