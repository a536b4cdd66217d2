"""A bisection in every format: the same runs, the same set, nothing wider than the terminal."""

import json
from dataclasses import replace

import pytest

from moeinspect.analysis.bisect.bisection import Bisection, SmallestSet, Trial
from moeinspect.analysis.findings import Diagnosis, InputSummary, Report
from moeinspect.report.bisection import render_bisection

OPTIONS = {"draft": "--draft /a/[b]/c", "overlap": "--overlap"}


def report(differs):
    summary = InputSummary("traces/t[1].h5", "local", 2, 1200, 5, 4, 32, True)
    counts = {
        "rows_compared": 1200,
        "cells_compared": 6000,
        "set_mismatch_cells": 70 * differs,
        "order_mismatch_cells": 2 * differs,
    }
    diagnoses = (Diagnosis("a|b", 0.9, ("because of\nthis",), "sglang#1", ""),) if differs else ()
    return Report("diff", (summary,) * 2, "findings" if differs else "clean", counts, (), (), diagnoses)


CLEAN, BOTH, REPEATED = (
    Trial((), report(False), 1.25),
    Trial(("draft", "overlap"), report(True), 2.0),
    Trial((), report(False), 1.0, again=True),
)
FOUND = Bisection(
    report(True),
    OPTIONS,
    (CLEAN, BOTH, REPEATED),
    "switches",
    (SmallestSet(("draft", "overlap"), BOTH.report.diagnoses, "moeinspect capture m --draft '/a/[b]/c'"),),
    notes=("a note",),
)
BY_ITSELF = SmallestSet(("overlap",), (Diagnosis("c", 0.6, ("why",), "", ""),), "moeinspect capture n")
TWO = replace(FOUND, sets=(*FOUND.sets, BY_ITSELF))
SET_KEYS = {"switches": "smallest", "diagnoses": "diagnoses", "show": "show"}
OTHERS = {
    "clean": Bisection(report(False), OPTIONS, (), "clean"),
    "target": Bisection(
        report(True),
        OPTIONS,
        (Trial((), report(True), 1.0),),
        "target",
        (SmallestSet((), (), "moeinspect x"),),
    ),
    "not-reproduced": Bisection(report(True), OPTIONS, (CLEAN, REPEATED), "not-reproduced"),
    "unfinished": Bisection(report(True), OPTIONS, (CLEAN,), "unfinished"),
}


def test_piped_it_is_one_record_a_line_with_the_verdict_last():
    lines = render_bisection(FOUND, "text", color=False, width=None).splitlines()
    assert lines == [
        "input traces/t[1].h5: local, 2 requests, 1200 rows, 5 MoE layers, top-4 of 32",
        "recorded: --draft /a/[b]/c --overlap: findings, 1200 rows compared, 72 cells differ, a|b",
        "run 1: no switch: clean, 1200 rows compared, 0 cells differ, 1.2 s",
        "run 2: --draft /a/[b]/c --overlap: findings, 1200 rows compared, 72 cells differ, a|b, 2.0 s",
        "run 3: no switch, again: clean, 1200 rows compared, 0 cells differ, 1.0 s",
        "smallest --draft /a/[b]/c --overlap",
        "cause a|b: confidence 0.90",
        "cause a|b: because because of\\nthis",
        "cause a|b: seen in sglang#1",
        "cause a|b: read moeinspect explain 'a|b'",
        "show moeinspect capture m --draft '/a/[b]/c'",
        "note a note",
        "switches: a difference comes with --draft /a/[b]/c --overlap, and with nothing less; "
        "nothing is left without it; 3 runs",
    ]


@pytest.mark.parametrize("width", [None, 80])
def test_every_set_is_told_with_its_cause_and_its_command(width):
    text = render_bisection(TWO, "text", color=False, width=width)
    for part in ("moeinspect capture m --draft '/a/[b]/c'", "moeinspect explain c", "moeinspect capture n"):
        assert part in text
    last = " ".join(text.split("\nswitches: ")[-1].split())
    assert last == (
        "a difference comes with --draft /a/[b]/c --overlap, another one with --overlap, each with nothing "
        "less; nothing is left without them; 3 runs"
    )


@pytest.mark.parametrize(
    ("remains", "words"),
    [
        ("something", "without it something still differs, and no run is left"),
        ("untried", "no run is left to see whether anything else differs"),
    ],
)
def test_what_is_left_is_said(remains, words):
    bisection = replace(FOUND, remains=remains)
    assert words in render_bisection(bisection, "text", color=False, width=None).splitlines()[-1]
    assert json.loads(render_bisection(bisection, "json", color=False, width=None))["remains"] == remains


def test_a_difference_in_the_target_and_one_of_a_switch_are_both_told():
    bisection = replace(TWO, outcome="target", sets=(SmallestSet((), (), "moeinspect x"), BY_ITSELF))
    last = render_bisection(bisection, "text", color=False, width=None).splitlines()[-1]
    assert last.startswith("target: ") and "another difference comes with --overlap" in last


@pytest.mark.parametrize("color", [False, True])
def test_a_terminal_gets_a_table_that_fits(color):
    text = render_bisection(FOUND, "text", color=color, width=80)
    assert ("\x1b[" in text) == color
    if not color:
        assert max(map(len, text.splitlines())) <= 80
        assert "as recorded: draft, overlap" in text and "none (again)" in text and "/a/[b]/c" in text


@pytest.mark.parametrize("outcome", OTHERS)
def test_every_outcome_is_said_in_every_format(outcome):
    bisection = OTHERS[outcome]
    for width in (None, 80):
        last = render_bisection(bisection, "text", color=False, width=width)
        assert f"\n{outcome}: " in last
    document = json.loads(render_bisection(bisection, "json", color=False, width=None))
    assert (document["schema"], document["outcome"]) == ("moeinspect-bisect/1", outcome)
    github = render_bisection(bisection, "github", color=False, width=None)
    assert github.startswith("::notice" if outcome == "clean" else "::error") and github.count("\n") == 1


def test_json_holds_the_runs_and_what_they_name():
    document = json.loads(render_bisection(FOUND, "json", color=False, width=None))
    assert [run["switches"] for run in document["runs"]] == [[], ["draft", "overlap"], []]
    assert [run["cells_differ"] for run in document["runs"]] == [0, 72, 0]
    assert [run["again"] for run in document["runs"]] == [False, False, True]
    assert document["smallest"] == ["draft", "overlap"]
    assert document["diagnoses"][0]["cause"] == "a|b"
    assert document["show"] == FOUND.sets[0].command
    assert document["sets"] == [{name: document[old] for name, old in SET_KEYS.items()}]
    two = json.loads(render_bisection(TWO, "json", color=False, width=None))
    assert [one["switches"] for one in two["sets"]] == [["draft", "overlap"], ["overlap"]]
    assert two["smallest"] == two["sets"][0]["switches"] and two["remains"] == "nothing"
