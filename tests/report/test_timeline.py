"""The timeline draws what ran when, and measures how far host and device worked together."""

import re
from dataclasses import replace

import numpy as np
import pytest
from analysis.tracefactory import make_facts, make_records, make_trace
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinspect.report.timeline import host_overlap, render_timeline
from moeinspect.trace.schema import Events, Lane

FACTS = make_facts()


def events(*rows):
    """Rows of (worker, lane, step, start, end)."""
    worker, lane, step, start, end = (list(column) for column in zip(*rows, strict=True))
    return Events(
        worker=np.asarray(worker, np.uint16),
        pid=np.zeros(len(rows), np.int32),
        lane=np.asarray(lane, np.uint8),
        step=np.asarray(step, np.int32),
        kind=np.asarray(["x"] * len(rows)),
        start=np.asarray(start, np.float64),
        end=np.asarray(end, np.float64),
    )


def trace(own, names=("prefill-0", "decode-0")):
    return replace(make_trace(make_records(FACTS, 1), FACTS, worker_names=names), events=own)


def test_a_trace_without_events_says_so():
    assert render_timeline(trace(None), width=80, color=False) == "timeline: the trace holds no events\n"


def test_lanes_show_busy_and_idle_columns():
    own = events((0, Lane.COMPUTE, 0, 0.0, 0.5), (0, Lane.HOST, 0, 0.5, 1.0))
    got = render_timeline(trace(own), width=None, color=False)
    lanes = {line.split()[0]: line.split()[1] for line in got.splitlines() if re.match("  [ch]o", line)}
    half = len(lanes["compute"]) // 2
    assert lanes["compute"] == "C" * half + "." * half
    assert lanes["host"] == "." * half + "H" * half


def test_workers_have_their_names_and_only_the_lanes_that_they_use():
    own = events((0, Lane.COMPUTE, 0, 0.0, 1.0), (1, Lane.TRANSFER, 0, 0.2, 0.4))
    got = render_timeline(trace(own), width=90, color=False).splitlines()
    assert [line.split()[0] for line in got[1:5]] == ["prefill-0", "compute", "decode-0", "transfer"]


def test_followers_without_a_host_are_not_said_to_overlap():
    own = events((0, Lane.COMPUTE, 0, 0.0, 1.0), (0, Lane.HOST, 0, 0.5, 1.0), (1, Lane.COMPUTE, 0, 0.0, 1.0))
    got = render_timeline(trace(own, ("tp-0", "tp-1")), width=None, color=False)
    assert "tp-0: in 1 of 1 steps" in got
    assert "tp-1: in" not in got and "leaders schedule for them: 1" in got


def test_a_short_event_is_never_invisible():
    own = events((0, Lane.COMPUTE, 0, 0.0, 10.0), (0, Lane.HOST, 0, 4.0, 4.0001))
    for width, mark in ((None, "h"), (80, "▁")):
        (host,) = [
            line
            for line in render_timeline(trace(own), width=width, color=False).splitlines()
            if "  host" in line
        ]
        assert host.count(mark) - ("host".count(mark)) == 1


@pytest.mark.parametrize("width", [60, 100, 180])
def test_the_lanes_are_as_wide_as_the_terminal(width):
    own = events((0, Lane.COMPUTE, 0, 0.0, 1.0))
    got = render_timeline(trace(own), width=width, color=False).splitlines()
    assert len(got[0]) == len(got[2]) == width


def test_without_a_terminal_it_is_plain_ascii_and_colour_only_adds_codes():
    own = events((0, Lane.COMPUTE, 0, 0.0, 1.0), (0, Lane.HOST, 0, 0.3, 0.4))
    assert render_timeline(trace(own), width=None, color=False).isascii()
    coloured = render_timeline(trace(own), width=80, color=True)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == render_timeline(trace(own), width=80, color=False)


def test_overlap_is_the_compute_time_during_which_the_host_worked():
    own = events(
        (0, Lane.COMPUTE, 0, 0.0, 1.0),
        (0, Lane.COMPUTE, 1, 1.0, 2.0),
        (0, Lane.COMPUTE, 2, 3.0, 4.0),
        (0, Lane.HOST, 1, 0.5, 0.75),
        (0, Lane.HOST, 1, 0.7, 1.0),
        (0, Lane.HOST, 2, 2.0, 3.0),
        (1, Lane.HOST, 0, 3.0, 4.0),
    )
    overlap = host_overlap(own, 0)
    assert (overlap.compute, overlap.together) == pytest.approx((3.0, 0.5))
    assert (overlap.steps, overlap.steps_overlapped) == (3, 1)
    got = render_timeline(trace(own), width=None, color=False)
    assert (
        "prefill-0: in 1 of 3 steps the host worked while the device computed, during 16.7 % of 3000 ms"
        in got
    )
    assert "decode-0: no compute" in got


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([Lane.HOST, Lane.COMPUTE]), st.integers(0, 30), st.integers(0, 6)),
        min_size=1,
        max_size=12,
    )
)
def test_overlap_is_what_counting_ticks_gives(rows):
    own = events(*((0, lane, 0, float(start), float(start + length)) for lane, start, length in rows))
    ticks = {
        lane: {t for one, start, length in rows if one == lane for t in range(start, start + length)}
        for lane in (Lane.HOST, Lane.COMPUTE)
    }
    overlap = host_overlap(own, 0)
    assert overlap.compute == len(ticks[Lane.COMPUTE])
    assert overlap.together == len(ticks[Lane.COMPUTE] & ticks[Lane.HOST])
