"""Text for pipes: one record a line, never cut, the verdict last."""

import re

import pytest
from report.sample import NASTY, an_input, check, clean_diff, diff, finding, layers

from moeinspect.analysis.findings import Finding
from moeinspect.report import plain, render

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def lines(report, *, color=False):
    return render(report, "text", color=color, width=None).splitlines()


def test_every_line_starts_with_what_it_is():
    kinds = [line.split()[0].rstrip(":") for line in lines(diff())]
    assert kinds == ["input"] * 2 + ["layer"] * 4 + ["error"] * 3 + ["diagnosis"] * 6 + ["findings"]


def test_long_lines_are_not_cut():
    path, message = "x" * 300 + ".h5", "rows " + "7, " * 200
    got = lines(diff(inputs=(an_input(path), an_input()), findings=(finding(message=message),)))
    assert path in got[0]
    assert any(message in line for line in got)


def test_control_characters_and_markup_of_the_data_are_shown_and_do_nothing():
    report = diff(findings=(finding(request=NASTY),), inputs=(an_input("[red]\x1b[0m\n.h5"), an_input()))
    text = render(report, "text", color=False, width=None)
    assert "\x1b" not in text
    assert "\r" not in text
    assert "[red]\\x1b[0m\\n.h5" in text
    assert "[bold]" in text
    assert len(text.splitlines()) == len(lines(diff())) - 2


def test_a_flood_of_one_rule_is_cut_and_says_so_and_another_rule_is_not(monkeypatch):
    monkeypatch.setattr(plain, "MAX_PER_RULE", 2)
    report = diff(findings=(*(finding(i) for i in range(5)), finding(9, "zero-rows")), diagnoses=())
    got = lines(report)
    assert [line for line in got if line.startswith("...")] == [
        "... and 3 more set-mismatch (use --format json)"
    ]
    assert sum(line.startswith("error set-mismatch") for line in got) == 2
    assert any("zero-rows" in line for line in got)


def test_findings_name_their_input_and_request():
    got = lines(diff())
    assert "error zero-rows in A request 'r2': rows 2-4 (prompt), layers 1-2: another expert set" in got
    assert any(line.startswith("error zero-rows request 'r0'") for line in lines(check()))
    two = check(inputs=(an_input("a.h5"), an_input("b.h5")), findings=(finding(input=1),))
    assert any("in #2 request" in line for line in lines(two))


def test_layers_tell_what_was_compared():
    (line, *_) = [line for line in lines(diff(layers=layers(1, weight_mismatch=0.5))) if "layer 0" in line]
    assert (
        line == "layer 0: 120 cells, set mismatch 0.0 %, weight mismatch 50.0 %, overlap 0.900, chance 0.250"
    )


def test_the_first_divergence_is_a_line_of_its_own():
    first = {"position": 7, "layer": 2, "token": 99, "step": 3, "worker": "decode-0"}
    got = lines(diff(findings=(finding(evidence={"first_divergence": first}),)))
    assert (
        "first-divergence request 'r0', position 7 (token 99), layer 2, step 3 of decode-0: set-mismatch"
        in got
    )


def test_colours_change_no_word():
    assert [ESCAPE.sub("", line) for line in lines(diff(), color=True)] == lines(diff())
    assert any("\x1b" in line for line in lines(diff(), color=True))


@pytest.mark.parametrize(
    ("report", "line"),
    [
        (clean_diff(), "clean: 312 rows, 1872 cells compared, 0 differ"),
        (diff(), "findings: 3 errors; 120 rows, 480 cells compared, 30 differ (6.2 %)"),
        (
            diff(verdict="numerics", counts=diff().counts | {"near_ties": 30}, findings=()),
            "numerics: 120 rows, 480 cells compared, 30 differ (6.2 %), all near-ties or after one",
        ),
        (
            diff(verdict="numerics", findings=(), strict=True),
            "numerics: 120 rows, 480 cells compared, 30 differ (6.2 %), within the tolerated share; "
            "counted as a difference",
        ),
        (check(), "findings: 1 error; 120 rows, 480 cells checked, 6 flagged"),
        (
            check(verdict="clean", findings=(), counts={"rows_checked": 1, "cells_checked": 4}),
            "clean: 1 row, 4 cells checked, 0 flagged",
        ),
    ],
)
def test_the_verdict_is_the_last_line(report, line):
    assert lines(report)[-1] == line


def test_a_share_is_never_rounded_to_nothing_or_to_all():
    for share, text in ((1e-6, "<0.1 %"), (0.99999, ">99.9 %"), (0.0, "0.0 %"), (1.0, "100.0 %")):
        assert plain.percent(share) == text
    assert plain.percent(None) == "-"


def test_notes_are_not_counted_in_the_verdict():
    note = Finding("no-margins", "note", "no margins", 0)
    assert lines(diff(findings=(finding(), note)))[-1].startswith("findings: 1 error;")
