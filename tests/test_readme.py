"""README shows what the commands really print: its console blocks are run again and compared.

Times, what depends on timing, and numbers of drafted tokens are normalised; everything else is exact.
`python tests/test_readme.py` writes the blocks anew.
"""

import io
import re
import shlex
import sys
from pathlib import Path

import pytest

from moeinspect import cli
from moeinspect.exit_status import ExitStatus

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)

UNSTABLE = [
    (
        re.compile(r"\d[\d.,]* of \d[\d.,]* drafted tokens accepted \(\d+%\)"),
        "N of N drafted tokens accepted",
    ),
    (re.compile(r"^( +0 ms) +[\d.,]+ m?s$", re.MULTILINE), r"\1 .. N"),
    (re.compile(r"^(  (?:host|compute|copy|transfer) ).*$", re.MULTILINE), r"\1 ..."),
    (re.compile(r"[\d.,]+ m?s\b"), "N ms"),
    (re.compile(r"during [\d.,]+ %"), "during N %"),
    (re.compile(r"in \d+ of \d+ steps the host"), "in N of N steps the host"),
]


class Shell:
    """Runs the commands of a console block in this process, stdout and stderr in one stream."""

    def __init__(self):
        self.status = 0

    def run(self, command):
        """What a terminal without colours and columns would show."""
        if command == "echo $?":
            return f"{self.status}\n"
        program, *argv = shlex.split(command)
        assert program == "moeinspect", f"README runs something else: {command}"
        before = sys.stdout, sys.stderr
        sys.stdout = sys.stderr = shown = io.StringIO()
        try:
            self.status = cli.main(argv)
        finally:
            sys.stdout, sys.stderr = before
        return shown.getvalue()


def commands_of(block):
    return [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]


def run_again(block, shell):
    """The block with the output that its commands give now."""
    return "".join(f"$ {command}\n{shell.run(command)}" for command in commands_of(block))


def stable(text):
    """`text` without what timing decides: durations, who ended first, how far the draft guessed ahead."""
    for pattern, replacement in UNSTABLE:
        text = pattern.sub(replacement, text)
    lines = text.splitlines()
    errors = iter(sorted(line for line in lines if line.startswith("error ")))
    return [next(errors) if line.startswith("error ") else line for line in lines]


def test_readme_shows_real_output(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    text = README.read_text(encoding="utf-8")
    shell = Shell()
    blocks = BLOCK.findall(text)
    assert blocks
    for block in blocks:
        assert stable(run_again(block, shell)) == stable(block)


@pytest.mark.parametrize("command", ["capture", "diff", "check-duplicates", "disagg-sim", "explain"])
def test_readme_shows_every_command(command):
    blocks = BLOCK.findall(README.read_text(encoding="utf-8"))
    assert any(f"$ moeinspect {command}" in block for block in blocks)


def test_readme_lists_every_exit_status():
    text = README.read_text(encoding="utf-8")
    assert {int(number) for number in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)} == set(ExitStatus)


PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "moeinspect").rglob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_link_to_files_that_are_there(page):
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(((?!https?:)[^)#\s]+)", text):
        assert (page.parent / link).exists(), link


def test_readme_names_scripts_that_are_there():
    scripts = re.findall(r"^bash (\S+)", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(scripts) == 2
    assert all((ROOT / script).exists() for script in scripts)


def test_normalising_keeps_what_matters():
    line = "prefill-0: in {} steps the host worked while the device computed, during {} %"
    assert stable(line.format("9 of 10", "1.2")) == stable(line.format("24 of 25", "99"))
    assert stable("layer 1: 685 cells, set mismatch 0.0 %") != stable(
        "layer 1: 685 cells, set mismatch 0.1 %"
    )


def write():
    """Puts today's output into README's blocks."""
    import os
    import tempfile

    text = README.read_text(encoding="utf-8")
    shell = Shell()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        text = BLOCK.sub(lambda found: f"```console\n{run_again(found[1], shell)}```", text)
        os.chdir(ROOT)
    README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
