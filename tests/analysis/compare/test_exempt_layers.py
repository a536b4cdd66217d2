"""Exempt layers of two traces: not captured is no mismatch but a note; captured on both sides is compared."""

from dataclasses import replace

import numpy as np
import pytest
from analysis.tracefactory import make_facts, make_records, make_trace

from moeinspect.analysis.compare import diff_report
from moeinspect.errors import InputError

FACTS = make_facts(5, 16, 4)
LAYER = 1


def trace(exempt=(), layers=(), value=0, facts=FACTS, change=None):
    """Healthy rows, `value` in all rows of `layers`; `exempt` is what the trace declares."""
    facts = replace(facts, capture_exempt_layers=tuple(exempt))
    made = make_records(facts, 3)
    for record in made:
        record.expert_ids[:, list(layers)] = value
        if change is not None:
            change(record.expert_ids)
    return make_trace(made, facts)


def notes(report):
    return [f for f in report.findings if f.rule == "not-compared"]


@pytest.mark.parametrize("value", [0, -1])
@pytest.mark.parametrize("declared", [((LAYER,), ()), ((), (LAYER,)), ((LAYER,), (LAYER,))])
@pytest.mark.parametrize("side", ["a", "b"])
def test_a_layer_that_one_side_did_not_capture_is_named_and_not_compared(side, declared, value):
    own, other = declared if side == "a" else declared[::-1]
    bad, good = trace(own, [LAYER], value), trace(other)
    report = diff_report(*((bad, good) if side == "a" else (good, bad)))
    (note,) = notes(report)
    assert note.severity == "note" and note.layers == (LAYER,) and note.count == len(good.rows)
    assert note.evidence == {"reason": "exempt-layers", "not_captured_in": [side]}
    assert f"not captured in {side.upper()}" in note.message
    assert [one.layer for one in report.layers] == [0, 2, 3, 4]
    assert report.counts["cells_compared"] == 4 * len(good.rows)
    assert report.counts["cells_exempt"] == len(good.rows)
    errors = [(f.rule, f.input) for f in report.findings if f.severity != "note"]
    # Only a side that exempts the layer may leave it out.
    if LAYER in own:
        assert report.verdict == "clean" and not errors
    else:
        rule = "zero-layers" if value == 0 else "partial-sentinel"
        assert set(errors) == {(rule, "ab".index(side))}


def test_a_layer_that_neither_side_captured_is_named_once():
    report = diff_report(trace([LAYER], [LAYER]), trace([LAYER], [LAYER]))
    (note,) = notes(report)
    assert note.evidence["not_captured_in"] == ["a", "b"] and "in A and B" in note.message
    assert report.verdict == "clean"


@pytest.mark.parametrize("declared", [((LAYER,), ()), ((), (LAYER,)), ((LAYER,), (LAYER,))])
def test_a_layer_that_both_captured_is_compared_as_any_other(declared):
    def wrong(ids):
        ids[5:9, LAYER] = np.roll(np.arange(4), 1)

    report = diff_report(trace(declared[0], change=wrong), trace(declared[1]))
    assert not notes(report)
    assert [f.layers for f in report.findings if f.rule == "set-mismatch"] == [(LAYER,)] * 3
    assert report.counts["cells_exempt"] == 0


def test_exempt_lists_that_differ_are_no_difference_between_models():
    report = diff_report(trace([LAYER]), trace([0, 3]))
    assert report.verdict == "clean"
    assert {f.rule for f in report.findings} == {"not-checked"}


def test_rows_that_lack_an_exempt_layer_are_told_apart_from_a_layer_without_any():
    def early(ids):
        ids[:6, LAYER] = 0

    good = trace()
    report = diff_report(trace([LAYER], change=early), good)
    (note,) = notes(report)
    assert "in some rows" in note.message and note.count == 18
    assert report.verdict == "clean"
    assert {one.layer: one.compared for one in report.layers}[LAYER] == len(good.rows) - 18


def test_a_layer_that_only_one_trace_has_is_a_note_if_it_is_exempt():
    whole = trace([0])
    facts = make_facts(5, 16, 4, moe_layers=[1, 2, 3, 4])
    part = make_trace(
        [replace(record, expert_ids=record.expert_ids[:, 1:]) for record in make_records(FACTS, 3)], facts
    )
    for pair in ((whole, part), (part, whole)):
        found = [f for f in diff_report(*pair).findings if f.rule == "model-mismatch"]
        assert [(f.severity, f.layers) for f in found] == [("note", (0,))]
    found = [f for f in diff_report(trace(), part).findings if f.rule == "model-mismatch"]
    assert [(f.severity, f.layers) for f in found] == [("error", (0,))]


def test_shifted_rows_are_found_beside_layers_that_were_not_captured():
    def later(ids):
        ids[5:20] = ids[6:21].copy()
        ids[:, [0, LAYER]] = 0

    report = diff_report(trace([0, LAYER], change=later), trace())
    (first, *_) = [f for f in report.findings if f.rule == "shifted-rows"]
    assert first.rows == (5, 20) and first.layers == (2, 3, 4)


def test_a_top_1_layer_that_holds_nothing_but_expert_0_was_not_captured():
    facts = make_facts(5, 16, 1)
    bad, good = trace([LAYER], [LAYER], facts=facts), trace(facts=facts)
    assert diff_report(bad, good).verdict == "clean"
    assert diff_report(trace(layers=[LAYER], facts=facts), good).verdict == "findings"


def test_two_traces_without_a_captured_layer_in_common_cannot_be_compared():
    everything = range(5)
    with pytest.raises(InputError, match="exempt from capture and were not captured"):
        diff_report(trace(everything, everything), trace())
