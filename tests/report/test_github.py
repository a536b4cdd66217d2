"""Workflow commands: one a line, nothing in the data can start another."""

import re

from report.sample import NASTY, check, clean_diff, diff, finding

from moeinspect.report import github, render

COMMAND = re.compile(r"^::(error|warning|notice) title=([^:,]*)::(.*)$")


def lines(report):
    return render(report, "github", color=True, width=80).splitlines()


def test_each_finding_is_a_command_of_its_severity_and_the_verdict_is_the_last_line():
    severities = ("error", "warning", "note")
    report = diff(findings=tuple(finding(i, severity=s) for i, s in enumerate(severities)), diagnoses=())
    *commands, verdict = lines(report)
    assert [COMMAND.match(line).group(1) for line in commands] == ["error", "warning", "notice"]
    assert COMMAND.match(commands[0]).group(2) == "moeinspect set-mismatch"
    assert "request 'r0', rows 0-2" in commands[0]
    assert verdict.startswith("findings: 1 error, 1 warning;")


def test_data_is_escaped_as_the_runner_unescapes_it():
    (command, _) = lines(check(findings=(finding(request=NASTY, message="50 % of\nall\r\nrows"),)))
    assert COMMAND.match(command)
    assert "50 %25 of%0Aall%0Arows" in command
    assert "\\x1b" in command
    assert "\x1b" not in command
    assert command.count("::error") == 2  # the command itself, and the one inside the quoted id


def test_a_title_cannot_be_left_by_its_rule():
    (command, _) = lines(check(findings=(finding(rule="a::b,c\n::error::"),)))
    assert COMMAND.match(command).group(2) == "moeinspect a%3A%3Ab%2Cc%0A%3A%3Aerror%3A%3A"


def test_a_diagnosis_is_a_notice_with_its_evidence():
    notice = lines(diff())[-2]
    assert COMMAND.match(notice).group(2) == "moeinspect diagnosis%3A draft-capture (95%25)"
    assert "- layers 1-2 differ%0A- a draft ran%0ASeen in: sglang#26980%0ANext: moeinspect x" in notice


def test_the_input_of_a_finding_is_named():
    assert "[A: a.h5]" in lines(diff())[2]
    assert "[run.h5]" in lines(check())[0]


def test_a_flood_of_findings_is_cut_and_says_so(monkeypatch):
    monkeypatch.setattr(github, "MAX_FINDINGS", 2)
    got = lines(diff(findings=tuple(finding(i) for i in range(5)), diagnoses=()))
    assert len(got) == 4
    assert "... and 3 more findings (use --format json)" in got[2]


def test_a_clean_report_is_its_verdict_alone():
    assert lines(clean_diff()) == ["clean: 312 rows, 1872 cells compared, 0 differ"]
