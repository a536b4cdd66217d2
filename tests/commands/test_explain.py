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
        ("no-merg", "did you mean no-merge, "),
        ("no-merge|tree-row", "no page named 'tree-row'; did you mean tree-rows, "),
        ("drft", "did you mean draft-capture, "),
        ("rows-repeated", "did you mean repeated-rows, "),
        ("qqqqqqqq", "nothing is near"),
        ("", "no page named ''"),
        ("the of", "no page named 'the of'"),
        ("23886", "no page names 23886; did you mean sglang#23885?"),
        ("vllm#23885", "no page names vllm#23885; did you mean sglang#23885?"),
        ("99999", "no page names 99999; try words of the symptom"),
    ],
)
def test_an_unknown_name_is_trouble_and_names_the_nearest(run, name, nearest):
    status, stdout, stderr = run(name)
    assert (status, stdout) == (2, "")
    assert nearest in stderr and "`moeinspect explain --list` lists all" in stderr


@pytest.mark.parametrize("name", ["No_Merge", "no merge", " no-merge "])
def test_capitals_underscores_and_blanks_are_forgiven(run, name):
    assert headings(run(name)[1]) == ["no-merge"]


@pytest.mark.parametrize(
    "report", ["sglang#23885", "23885", "https://github.com/sgl-project/sglang/pull/23885"]
)
def test_an_upstream_report_of_one_page_gives_the_page(run, report):
    status, stdout, stderr = run(report)
    assert (status, headings(stdout)) == (0, ["skip-finalize-prefill"])
    assert stderr.startswith("Next: moeinspect capture --fault skip-finalize-prefill")


def test_a_report_of_several_pages_lists_them_and_the_next_command_reads_the_first(run):
    status, stdout, stderr = run("sglang#26980")
    names = [re.match(r"fault ([\w-]+): .+", line)[1] for line in stdout.splitlines()]
    assert status == 0
    assert {"draft-capture", "draft-optout-late", "ungated-backend"} < set(names)
    assert stderr == f"Next: moeinspect explain {names[0]}\n"


def test_words_of_a_symptom_list_the_pages_that_fit_and_json_has_no_texts(run):
    status, stdout, _ = run("Duplicate experts in routing!", "--format", "json")
    pages = json.loads(stdout)["pages"]
    assert status == 0 and all("text" not in page for page in pages)
    assert {"skip-finalize-prefill", "duplicate-experts", "zero-rows"} <= {page["name"] for page in pages}


def test_a_terminal_lists_what_fits_under_the_headings_that_have_any(run, terminal):
    shown = run("sglang#26980", "--color", "never")[1]
    assert "Faults" in shown and "Rules" not in shown
    assert max(map(len, shown.splitlines())) <= 80


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
