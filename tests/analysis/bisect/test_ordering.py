"""Whom the diagnosis names is suspected first."""

import pytest

from moeinspect.analysis.bisect.ordering import _ALSO_NEEDED, _needed, likeliest_first
from moeinspect.analysis.diagnose.catalogue import CAUSES
from moeinspect.analysis.findings import Diagnosis
from moeinspect.runtime.switches import SWITCHES

ON = ("draft", "overlap", "disagg", "draft_topk", "prefix_cache", "host_kv_slots")


def diagnosed(*causes):
    return [Diagnosis(cause, 0.9, (), "", "") for cause in causes]


@pytest.mark.parametrize(
    ("causes", "order"),
    [
        ((), ON),
        (("unknown",), ON),
        (("no-such-cause",), ON),
        (
            ("skip-finalize-prefill",),
            ("overlap", "disagg", "draft", "draft_topk", "prefix_cache", "host_kv_slots"),
        ),
        (
            ("tree-rows", "no-merge"),
            ("draft_topk", "disagg", "draft", "overlap", "prefix_cache", "host_kv_slots"),
        ),
        (
            ("stale-slot|buffer-reuse",),
            ("prefix_cache", "host_kv_slots", "overlap", "draft", "disagg", "draft_topk"),
        ),
        (
            ("draft-capture",),
            ("draft", "draft_topk", "overlap", "disagg", "prefix_cache", "host_kv_slots"),
        ),
        (("graph-static-rows", "pp-stage"), ON),  # neither is on
    ],
)
def test_the_diagnosis_comes_first_and_the_others_keep_their_order(causes, order):
    assert likeliest_first(ON, diagnosed(*causes)) == order


def test_all_that_a_cause_needs_are_switches_that_bisect_turns():
    for cause in CAUSES:
        assert set(_needed(cause)) <= set(SWITCHES)
    assert _ALSO_NEEDED.keys() <= CAUSES.keys()
