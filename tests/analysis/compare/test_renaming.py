"""Names of experts that change during a run are found, with when they change; nothing else is one."""

from dataclasses import replace

import numpy as np
import pytest
from analysis.diagnose.faultytraces import FACTS, baseline, records, spoiled, trace
from analysis.diagnose.test_diagnose_diff import random_ids, random_layers

from moeinspect.analysis.compare import compare
from moeinspect.analysis.compare.diff import diff_report
from moeinspect.analysis.compare.renaming import find_renamings

E, COPIES, INTERVAL = FACTS.num_experts, 4, 6


def placed(record, number, interval=INTERVAL):
    """Slots of experts placed anew every `interval` steps; the experts with copies use them in turn."""
    ids = record.expert_ids
    slots = np.empty(ids.shape, dtype=np.int64)
    for layer in range(ids.shape[1]):
        for row, step in enumerate(record.step.tolist()):
            rng = np.random.default_rng([layer, step // interval])
            held = rng.permutation(np.concatenate([np.arange(E), rng.permutation(E)[:COPIES]]))
            for k, expert in enumerate(ids[row, layer].tolist()):
                of_expert = np.flatnonzero(held == expert)
                slots[row, layer, k] = of_expert[(row + k) % len(of_expert)]
    return {"expert_ids": slots}


def renamings(a):
    comparison = compare(a, baseline())
    return find_renamings(comparison.alignment, comparison.cells)


def test_names_that_change_are_found_in_every_layer_with_the_steps_around_each_change():
    found, changes = renamings(spoiled(placed, disagg=False))
    assert [one.place for one in found] == [0, 1, 2, 3]
    assert all((one.names, one.experts) == (E + COPIES, E) for one in found)
    last = int(records(disagg=False)[0].step[-1])
    wanted = [(step - 1, step) for step in range(INTERVAL, last + 1, INTERVAL)]
    assert [(change.after, change.before) for change in changes] == wanted


def test_names_that_stay_do_not_change():
    found, changes = renamings(spoiled(lambda r, n: placed(r, n, 1000), disagg=False))
    assert len(found) == 4
    assert changes == []


def test_each_worker_has_names_of_its_own():
    found, changes = renamings(spoiled(lambda r, n: placed(r, n, 8)))
    assert len(found) == 4
    assert {change.worker for change in changes} == {0, 1}


def test_one_report_names_them_and_their_cause():
    bad = spoiled(placed, disagg=False, redundant_experts=COPIES, rebalance_interval=INTERVAL)
    report = diff_report(bad, baseline())
    assert [one.cause for one in report.diagnoses] == ["physical-ids"]
    (finding,) = (f for f in report.findings if f.rule == "permuted-ids")
    assert finding.evidence["num_changes"] == 4
    assert any("6 forwards" in reason for reason in report.diagnoses[0].because)


OTHER = random_ids((4, 4))
"""One unrelated row for each request."""


def constant_rows(record, number):
    return {"expert_ids": np.broadcast_to(record.expert_ids[:1], record.expert_ids.shape).copy()}


def next_layer(record, number):
    return {"expert_ids": np.roll(record.expert_ids, 1, axis=1)}


def one_expert_off(record, number):
    ids = record.expert_ids.copy()
    ids[::3, :, 3] = (ids[::3, :, 3] + 1) % E
    return {"expert_ids": ids}


@pytest.mark.parametrize("change", [constant_rows, next_layer, one_expert_off, random_layers([0, 1, 2, 3])])
def test_other_wrong_rows_are_no_names(change):
    assert renamings(spoiled(change, disagg=False)) == ([], [])


def test_a_text_that_repeats_itself_does_not_make_one_wrong_row_a_name():
    made = [
        replace(r, expert_ids=np.broadcast_to(r.expert_ids[:1], r.expert_ids.shape).copy())
        for r in records(disagg=False)
    ]
    wrong = [
        replace(r, expert_ids=np.broadcast_to(row, r.expert_ids.shape))
        for r, row in zip(made, OTHER, strict=True)
    ]
    comparison = compare(trace(wrong, disagg=False), trace(made, disagg=False))
    assert find_renamings(comparison.alignment, comparison.cells) == ([], [])
