"""`moeinspect explain`: pages by name, the list, JSON, and names that are unknown."""

import json
import re

import pytest

from moeinspect import cli, console
from moeinspect.guide import all_pages

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Runs `moeinspect explain` in an empty folder: exit status, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def run(*argv):
        status = cli.main(["explain", *argv])
        return (status, *capsys.readouterr())

    return run


@pytest.fixture
def terminal(monkeypatch):
    """Stdout is a terminal of 80 columns."""
    monkeypatch.setattr(console, "is_terminal", lambda _stream: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)


def headings(text):
    return re.findall(r"^# ([\w-]+):", text, re.MULTILINE)


def test_a_piped_page_is_its_markdown_and_the_next_command_commits_the_fault(run):
    status, stdout, stderr = run("no-merge")
    assert status == 0
    assert headings(stdout) == ["no-merge"] and "**Mechanism.**" in stdout
    assert stderr == "Next: moeinspect capture --fault no-merge -o no-merge.h5\n"


def test_a_joined_cause_gives_the_pages_of_all_its_names(run):
    assert headings(run("no-merge|skip-finalize-prefill")[1]) == ["no-merge", "skip-finalize-prefill"]


def test_a_name_of_a_cause_and_of_a_rule_gives_both_pages(run):
    _, stdout, _ = run("missing-request", "--format", "json")
    assert [page["kind"] for page in json.loads(stdout)["pages"]] == ["transport", "rule"]


@pytest.mark.parametrize("argv", [[], ["--list"]], ids=["no name", "--list"])
def test_the_list_has_every_page_on_a_line_of_its_own(run, argv):
    status, stdout, stderr = run(*argv)
    assert (status, stderr) == (0, "")
    assert stdout.splitlines() == [f"{page.kind} {page.name}: {page.title}" for page in all_pages()]


def test_json_has_the_text_of_a_page_and_where_its_cause_was_seen(run):
    _, stdout, stderr = run("draft-capture", "--format", "json")
    document = json.loads(stdout)
    (page,) = document["pages"]
    assert document["schema"] == "moeinspect-guide/1" and stderr == ""
    assert list(page) == ["name", "title", "kind", "reference", "text"]
    assert "sglang#26980" in page["reference"] and "**Mechanism.**" in page["text"]


def test_json_of_the_list_has_no_texts(run):
    pages = json.loads(run("--format", "json")[1])["pages"]
    assert [page["name"] for page in pages] == [page.name for page in all_pages()]
    assert all("text" not in page for page in pages)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("no-merg", "the nearest: no-merge"),
        ("zero", "the nearest: zero-layers, zero-rows"),
        ("no-merge|tree-row", "no page named 'tree-row'; the nearest: tree-rows"),
        ("drft", "the nearest: draft-capture"),
        ("rows-repeated", "the nearest: repeated-rows"),
        ("qqqqqqqq", "none is near"),
        ("", "no page named ''"),
    ],
)
def test_an_unknown_name_is_trouble_and_names_the_nearest(run, name, nearest):
    status, stdout, stderr = run(name)
    assert (status, stdout) == (2, "")
    assert nearest in stderr and "`moeinspect explain --list` lists all" in stderr


def test_capitals_and_underscores_are_forgiven(run):
    assert headings(run("No_Merge")[1]) == ["no-merge"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["no-merge", "--list"], "--list beside no-merge: all names or one page"),
        (["no-merge", "--format", "github"], "--format github: a page annotates nothing"),
    ],
)
def test_what_makes_no_sense_is_refused(run, argv, message):
    status, stdout, stderr = run(*argv)
    assert (status, stdout) == (2, "")
    assert message in stderr


def test_a_page_goes_to_a_file_and_never_over_one(run, tmp_path):
    assert run("no-merge", "-o", "page.md", "-q")[:2] == (0, "")
    assert headings((tmp_path / "page.md").read_text()) == ["no-merge"]
    assert "page.md exists" in run("no-merge", "-o", "page.md")[2]


@pytest.mark.parametrize("name", [None, *{page.name: None for page in all_pages()}])
def test_a_terminal_shows_everything_within_80_columns(run, terminal, name):
    shown = run(*([] if name is None else [name]), "--color", "never")[1]
    assert max(map(len, shown.splitlines())) <= 80
    assert "\x1b" not in shown
    if name is not None:
        assert [mark for mark in ("**", "```", "…") if mark in shown] == []


def test_no_color_leaves_the_layout_and_takes_the_colours(run, terminal, monkeypatch):
    coloured = run("no-merge")[1]
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" in coloured
    plain = [line.rstrip() for line in ESCAPE.sub("", coloured).splitlines()]
    assert plain == run("no-merge")[1].splitlines()


def test_a_narrow_terminal_breaks_long_words_of_a_table_and_cuts_none(run, terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "44")
    shown = run("zero-rows", "--color", "never")[1]
    assert max(map(len, shown.splitlines())) <= 44
    assert "…" not in shown and "finalize" in shown
