"""Whom the diagnosis names is suspected first."""

import pytest

from moeinspect.analysis.bisect.ordering import likeliest_first
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
            ("overlap", "draft", "disagg", "draft_topk", "prefix_cache", "host_kv_slots"),
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
        (("draft-optout-late",), ON),  # graphs are not on
    ],
)
def test_the_diagnosis_comes_first_and_the_others_keep_their_order(causes, order):
    assert likeliest_first(ON, diagnosed(*causes)) == order


def test_every_switch_that_avoids_a_cause_is_one_that_bisect_turns():
    from moeinspect.analysis.bisect.ordering import _switch_of
    from moeinspect.analysis.diagnose.catalogue import CAUSES

    assert {_switch_of(cause.local[0]) for cause in CAUSES.values() if cause.local} <= set(SWITCHES)
