"""Transport faults by name: from one trace where that shows them, else against the healthy trace."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from analysis.toymodel import ToyStyle, toy_trace
from analysis.tracefactory import make_facts, make_records, make_trace

from moeinspect.analysis.check import check_report
from moeinspect.analysis.compare.diff import diff_report
from moeinspect.trace.transport import apply_transport_fault
from moeinspect.trace.transport.filler import FILLERS, PARTS, PLACES, filled, partly_absent, without_payload
from moeinspect.trace.transport.imported import imported
from moeinspect.trace.transport.joins import GAPS, gaps_between_turns, joined_twice
from moeinspect.trace.transport.layers import aliased_prediction_layers

HEALTHY = toy_trace(make_facts(6, 60, 4), ToyStyle(), 1, 10)
FACTS = make_facts(4, 384, 8)
LARGE = make_trace(make_records(FACTS), FACTS)

BOTH = {
    "double-concat": [partial(joined_twice, parts=parts) for parts in (2, 3)],
    "partial-sentinel": [partial(partly_absent, part=part) for part in PARTS],
    "filler-as-real": [
        partial(filled, filler=filler, place=place, rows=6)
        for filler in FILLERS
        for place in PLACES
        if filler != "copied" or place == "padding"
    ],
    "missing-request": [partial(without_payload, absence=absence) for absence in ("field", "sentinel")],
    "turn-gap": [partial(gaps_between_turns, gap=gap, turns=3) for gap in GAPS if "missing" not in gap],
    "mtp-alias": [
        lambda trace, rng: aliased_prediction_layers(trace),
        lambda trace, rng: aliased_prediction_layers(trace, added=True),
    ],
}
DIFF = {
    "double-concat": [partial(joined_twice, cut=True)],
    "filler-as-real": [
        partial(filled, filler=filler, place=place, rows=1)
        for filler in ("arange", "running", "copied")
        for place in ("tail", "between")
    ],
    "turn-gap": [partial(gaps_between_turns, gap=gap, turns=3) for gap in GAPS if "missing" in gap],
}


def cases(table):
    return [(name, number) for name, changes in table.items() for number in range(len(changes))]


def is_first(report, name):
    return report.verdict == "findings" and name in report.diagnoses[0].cause.split("|")


@pytest.mark.parametrize(("name", "number"), cases(BOTH))
def test_one_trace_names_it_first(name, number):
    changed = BOTH[name][number](HEALTHY, np.random.default_rng(number))
    assert is_first(check_report([changed]), name)
    assert is_first(check_report([imported(changed)]), name)


@pytest.mark.parametrize(("name", "number"), cases(BOTH)[::3])
def test_so_does_the_comparison(name, number):
    changed = BOTH[name][number](HEALTHY, np.random.default_rng(number))
    assert is_first(diff_report(changed, HEALTHY), name)


@pytest.mark.parametrize(("name", "number"), cases(DIFF))
def test_only_the_comparison_names_it_first(name, number):
    changed = DIFF[name][number](HEALTHY, np.random.default_rng(number))
    assert is_first(diff_report(imported(changed), imported(HEALTHY)), name)


def test_wrapped_ids_are_seen_by_repeated_ones_and_by_the_baseline():
    wrapped = apply_transport_fault("uint8-wrap", LARGE)
    assert is_first(check_report([wrapped]), "uint8-wrap")
    assert is_first(diff_report(imported(wrapped), imported(LARGE)), "uint8-wrap")


def test_a_layer_that_repeats_its_neighbour_may_be_shifted():
    ids = HEALTHY.rows.expert_ids.copy()
    ids[:, 5] = ids[:, 4]
    changed = replace(HEALTHY, rows=replace(HEALTHY.rows, expert_ids=ids))
    assert diff_report(changed, HEALTHY).diagnoses[0].cause == "layer-shift|mtp-alias"
    assert check_report([changed]).diagnoses[0].cause == "layer-shift|mtp-alias"


def test_one_gap_in_each_request_is_no_shard_of_steps():
    changed = filled(HEALTHY, np.random.default_rng(0), filler="zeros", place="between", rows=12, share=1.0)
    assert check_report([imported(changed)]).diagnoses[0].cause == "filler-as-real|turn-gap"
