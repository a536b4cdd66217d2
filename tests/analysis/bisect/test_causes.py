"""What sets of switches say of causes."""

import pytest

from moeinspect.analysis.bisect.causes import not_shown, settled_by
from moeinspect.analysis.findings import Diagnosis, Report


def cause(name, confidence=0.9):
    return Diagnosis(name, confidence, ("so",), "all of them", "")


@pytest.mark.parametrize(
    ("switches", "joined", "left"),
    [
        (
            {"draft", "backend"},
            "bypass-drops-flag|draft-capture|ungated-backend",
            "bypass-drops-flag|ungated-backend",
        ),
        ({"draft"}, "bypass-drops-flag|draft-capture|ungated-backend", "draft-capture"),
        ({"draft", "graph"}, "draft-capture|draft-optout-late", "draft-optout-late"),
        ({"draft", "draft_topk", "overlap"}, "draft-forward-end|tree-rows", "draft-forward-end"),
        ({"draft", "draft_topk"}, "draft-forward-end|tree-rows", "tree-rows"),
        (set(), "init-order|kernel-uncaptured", "init-order"),
    ],
)
def test_a_smallest_set_rules_out_causes_that_need_others(switches, joined, left):
    settled = settled_by(frozenset(switches), cause(joined))
    assert settled.cause == left
    assert settled.because[0] == "so" and settled.because[-1].startswith("runs differ with ")
    ruled_out = set(joined.split("|")) - set(left.split("|"))
    assert all(name in settled.because[-1] for name in ruled_out)
    assert settled.reference and settled.reference != "all of them"


@pytest.mark.parametrize(
    ("switches", "name"),
    [
        ({"overlap"}, "draft-capture|draft-optout-late"),
        ({"draft"}, "draft-capture"),
        ({"overlap"}, "buffer-reuse|read-early"),
    ],
)
def test_a_set_that_no_name_needs_or_all_do_leaves_the_cause_as_it_is(switches, name):
    assert settled_by(frozenset(switches), cause(name)) == cause(name)


def test_likely_causes_of_the_trace_that_no_set_shows():
    recorded = [cause("a|b"), cause("c", 0.5), cause("d", 0.4), cause("unknown"), cause("tokens-diverged")]
    report = Report("diff", (), "findings", {}, (), (), tuple(recorded))
    assert [one.cause for one in not_shown(report, [cause("b|z")])] == ["c"]
    assert not_shown(report, [cause("c"), cause("a")]) == ()
