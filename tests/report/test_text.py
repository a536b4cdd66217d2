"""Text for a terminal: as wide as it is, data taken literally, the verdict last."""

import re

import pytest
from report.sample import NASTY, check, clean_diff, diff, finding, layers

from moeinspect.report import render, text

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def shown(report, *, width=100, color=False):
    return render(report, "text", color=color, width=width)


@pytest.mark.parametrize("width", [40, 80, 110, 200])
def test_no_line_is_wider_than_the_terminal(width):
    report = diff(findings=(finding(message="word " * 60, request="long-" * 30),), layers=layers(60))
    assert max(len(line) for line in shown(report, width=width).splitlines()) <= width


def test_everything_that_a_finding_says_is_there_however_narrow():
    report = diff(findings=(finding(message="rows 3-9 (output), layers 1-2: another expert set"),))
    words = " ".join(shown(report, width=60).split())
    assert "rows 3-9 (output), layers 1-2: another expert set" in words


def test_findings_are_grouped_by_rule_and_long_groups_cut(monkeypatch):
    monkeypatch.setattr(text, "MAX_PER_GROUP", 2)
    got = shown(diff(findings=(*(finding(i) for i in range(5)), finding(7, "zero-rows", input=0))))
    assert got.count("error  set-mismatch") == 1
    assert "30 in 5 runs, 5 requests" in got
    assert "... and 3 more (use --format json)" in got
    assert "error  zero-rows  in A" in got


def test_markup_and_control_characters_of_the_data_do_nothing():
    message = "[bold]x[/bold] [link=y]\x1b[5m"
    got = shown(check(findings=(finding(message=message, request=NASTY),)), width=200)
    assert "[bold]x[/bold] [link=y]\\x1b[5m" in got
    assert "\x1b" not in got
    assert "evil\\x1b[31m\\r\\n::error::x%, [bold]" in got


def test_colour_adds_escape_codes_and_nothing_else():
    assert "\x1b[" in shown(diff(), color=True)
    plain = ESCAPE.sub("", shown(diff(), color=True)).splitlines()
    assert [line.rstrip() for line in plain] == shown(diff()).splitlines()


def test_a_diagnosis_shows_cause_evidence_reference_and_command():
    got = shown(diff())
    read = "read moeinspect explain draft-capture"
    for part in ("draft-capture", "95 % sure", "layers 1-2 differ", "sglang#26980", read, "next moeinspect"):
        assert part in got


def test_a_difference_is_never_an_empty_bar():
    report = diff(layers=layers(3)[:1] + tuple(one for one in layers(3)[1:2]))
    rows = [line for line in shown(report).splitlines() if re.match(r" +[01] +120", line)]
    assert rows[0].count("█") == 0
    assert rows[1].count("█") == 5
    tiny = [line for line in shown(diff(layers=(tiny_layer(),))).splitlines() if "<0.1 %" in line]
    assert "▏" in tiny[0]


def tiny_layer():
    (one,) = layers(1)
    return type(one)(0, 100_000, 1e-5, None, 0.9, one.extra)


def test_a_deep_model_gets_a_heat_line_and_its_worst_layers():
    got = shown(diff(layers=layers(48)))
    (heat,) = [line for line in got.splitlines() if line.startswith("  0 ")]
    assert "·▂" in heat or "·▃" in heat
    assert heat.count("·") >= 47
    assert len([line for line in got.splitlines() if re.match(r" +\d+ +120", line)]) == 1


def test_regions_are_summed_over_the_layers():
    regions = {
        "prompt": {"compared": 50, "set_mismatch": 0.5},
        "output": {"compared": 0, "set_mismatch": None},
    }
    got = shown(diff(layers=layers(2, regions=regions)))
    assert "prompt 50.0 %" in got
    assert "output" not in got


def test_the_verdict_is_the_last_line():
    assert shown(clean_diff()).splitlines()[-1] == "clean: 312 rows, 1872 cells compared, 0 differ"
    assert shown(diff()).splitlines()[-1].startswith("findings: 3 errors;")
