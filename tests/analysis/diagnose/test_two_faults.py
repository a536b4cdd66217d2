"""Two things wrong in one trace: both by name, and in plain words what neither explains."""

from dataclasses import replace

import numpy as np
import pytest
from analysis.compare.logitpairs import logit_pair
from analysis.diagnose.faultytraces import (
    PROMPT,
    overwritten_by_next_step,
    records,
    trace,
    zeroed,
)
from analysis.diagnose.test_diagnose_diff import random_ids, random_layers
from analysis.diagnose.test_diagnose_ranks import sharded

from moeinspect.analysis.check import check_report
from moeinspect.analysis.compare import diff_report
from moeinspect.report.plain import render_plain
from moeinspect.report.text import render_text
from moeinspect.trace.schema import Origin

REQUESTS = 6
DRAFT = {"draft": "builtin:tiny-draft"}
GOOD = records(REQUESTS, disagg=False)
BASELINE = trace(GOOD, disagg=False, overlap=False, path="b.h5")


def each(change):
    return lambda made: [replace(record, **change(record, number)) for number, record in enumerate(made)]


def of_a_former_owner(record, number):
    """A cached prefix of other rows."""
    if number == 0:
        return {}
    ids = record.expert_ids.copy()
    ids[:12] = GOOD[number - 1].expert_ids[20:32]
    return {"expert_ids": ids, "cached_tokens": 12}


def padding(record, number):
    ids = record.expert_ids.copy()
    ids[16:21] = random_ids((4,), 3)
    return {"expert_ids": ids}


def one_row_for_all(record, number):
    ids = record.expert_ids.copy()
    ids[PROMPT:] = ids[-1]
    return {"expert_ids": ids}


def surplus(record, number):
    fields = ("validity", "origin", "worker", "step", "slot", "row_weight_version", "expert_ids")
    return {name: np.concatenate([getattr(record, name), getattr(record, name)[-2:]]) for name in fields}


FAULTS = {
    "draft-capture": (each(random_layers([1, 2])), DRAFT),
    "buffer-reuse": (overwritten_by_next_step, {}),
    "graph-static-rows": (each(one_row_for_all), {"graph": True}),
    "padded-rows": (each(padding), {"graph": True}),
    "stale-slot": (each(of_a_former_owner), {"host_kv_slots": 64}),
    "tp-shard": (lambda made: sharded(made, 2, tile=4), {"tp_size": 2}),
    "pp-stage": (each(zeroed(slice(None), [2, 3])), {"pp_size": 2}),
    "hash-layer-uncaptured": (each(zeroed(slice(None), [0])), {"hash_layers": [0]}),
    "read-early": (each(zeroed(slice(-2, None))), {}),
    "surplus-after-stop": (each(surplus), DRAFT),
}
"""Changes in the order in which they would happen: what is chosen, what is stored, what is read."""


def faulty(*names):
    made, switches = GOOD, {}
    for name, (change, config) in FAULTS.items():
        if name in names:
            made, switches = change(made), switches | config
    return trace(made, disagg=False, **switches)


def causes(report):
    return [one.cause for one in report.diagnoses]


@pytest.mark.parametrize("name", FAULTS)
def test_a_single_fault_has_a_single_cause_that_explains_all(name):
    report = diff_report(faulty(name), BASELINE)
    assert causes(report) == [name]
    assert "cells_unexplained" not in report.counts


@pytest.mark.parametrize(
    "pair",
    [
        ("draft-capture", "buffer-reuse"),
        ("draft-capture", "graph-static-rows"),
        ("draft-capture", "stale-slot"),
        ("draft-capture", "pp-stage"),
        ("draft-capture", "surplus-after-stop"),
        ("buffer-reuse", "stale-slot"),
        ("buffer-reuse", "pp-stage"),
        ("graph-static-rows", "padded-rows"),
        ("padded-rows", "stale-slot"),
        ("tp-shard", "pp-stage"),
        ("tp-shard", "hash-layer-uncaptured"),
        ("pp-stage", "hash-layer-uncaptured"),
        ("pp-stage", "read-early"),
    ],
    ids="+".join,
)
def test_two_faults_are_both_named_and_nothing_else_is(pair):
    report = diff_report(faulty(*pair), BASELINE)
    named = [cause.split("|") for cause in causes(report)]
    assert all(any(name in cause for cause in named) for name in pair), causes(report)
    assert all(set(cause) & set(pair) for cause in named), causes(report)
    explained = [one.explains for one in report.diagnoses]
    assert sum(explained) <= report.counts["cells_flagged"]


def test_a_draft_that_spoils_all_layers_that_a_lost_stage_leaves_is_named():
    made = each(zeroed(slice(None), [2, 3]))(each(random_layers([0, 1]))(GOOD))
    report = diff_report(trace(made, disagg=False, pp_size=2, **DRAFT), BASELINE)
    assert sorted(causes(report)) == ["draft-capture", "pp-stage"]
    assert "cells_unexplained" not in report.counts


def test_pages_of_a_cached_prefix_beside_dropped_results_are_no_slices():
    """A request's own pages in other slots, some of them never written, and outputs likewise."""

    def restored(record, number):
        ids, position = record.expert_ids.copy(), np.arange(len(record.expert_ids))
        ids[:16] = record.expert_ids[:16].reshape(4, 4, *ids.shape[1:])[[1, 0, 3, 2]].reshape(ids[:16].shape)
        ids[PROMPT + number % 2 * 4 :] = 0
        origin = np.where(position >= PROMPT, Origin.VERIFY, record.origin)
        ids[12:16] = 0 if number % 3 == 0 else ids[12:16]
        return {"expert_ids": ids, "cached_tokens": 16, "origin": origin.astype(np.uint8)}

    bad = trace(each(restored)(GOOD), disagg=False, host_kv_slots=64, **DRAFT)
    assert sorted(causes(diff_report(bad, BASELINE))) == ["stale-slot", "verify-dropped"]


def test_one_trace_shows_two_kinds_of_zeros():
    report = check_report([faulty("tp-shard", "pp-stage")])
    assert causes(report) == ["tp-shard", "pp-stage"]
    assert sum(one.explains for one in report.diagnoses) == report.counts["cells_flagged"]


def scattered(record, number):
    """Cells that no known cause spoils in this way: some of the layers, every seventh row."""
    return random_layers([0, 3], slice(3, 30, 7))(record, number)


def test_what_no_cause_explains_is_told_in_plain_words_and_is_unknown():
    made = each(scattered)(each(zeroed(slice(None), [1]))(GOOD))
    report = diff_report(trace(made, disagg=False, pp_size=1, hash_layers=[1]), BASELINE)
    named, unknown = report.diagnoses
    assert (named.cause, unknown.cause) == ("hash-layer-uncaptured", "unknown")
    cells = REQUESTS * len(range(3, 30, 7)) * 2
    assert unknown.explains == report.counts["cells_unexplained"] == cells
    words = f"{cells} of {named.explains + cells} flagged cells are explained by none of these"
    assert words in render_plain(report, color=False)
    assert words in render_text(report, color=False, width=80)


def test_a_few_cells_beside_a_fault_are_told_and_are_no_cause_of_their_own():
    def few(record, number):
        return random_layers([0], slice(3, 4))(record, number) if number == 0 else {}

    made = each(few)(each(zeroed(slice(None), [2, 3]))(GOOD))
    report = diff_report(trace(made, disagg=False, pp_size=2), BASELINE)
    assert causes(report) == ["pp-stage"]
    assert report.counts["cells_unexplained"] == 1


def test_random_rows_beside_a_fault_get_no_name():
    made = each(zeroed(slice(None), [0]))(each(random_layers([0, 1, 2, 3], slice(3, 30, 7)))(GOOD))
    report = diff_report(trace(made, disagg=False, hash_layers=[0], draft_topk=1, **DRAFT), BASELINE)
    assert causes(report) == ["hash-layer-uncaptured", "unknown"]


def one_layer(ids):
    ids[:, 17] = random_ids((len(ids),))


@pytest.mark.parametrize("margins", [True, False])
def test_rounding_does_not_hide_one_layer_of_many(margins):
    a, b = logit_pair(
        noise=0.03, layers=48, edit=one_layer, margins=margins, dtype="bfloat16", slot_order="unknown"
    )
    a = replace(a, run=replace(a.run, run_config={**a.run.run_config, **DRAFT}))
    report = diff_report(a, b)
    assert causes(report) == (["draft-capture"] if margins else ["draft-capture", "numerics"])
    assert report.diagnoses[0].explains >= 0.9 * len(a.rows)
