"""Files that cannot be compared: one line that names the file, exit 2."""

import h5py
import pytest

from moeinspect import cli


@pytest.fixture(scope="module")
def good_bytes(tmp_path_factory):
    """A small trace."""
    folder = tmp_path_factory.mktemp("good")
    (folder / "prompts.jsonl").write_text('{"id": "a", "input_ids": [1, 2, 3]}')
    argv = ["capture", "--prompts", str(folder / "prompts.jsonl"), "-o", str(folder / "good.h5"), "-q"]
    assert cli.main([*argv, "--max-new-tokens", "3"]) == 0
    return (folder / "good.h5").read_bytes()


@pytest.fixture
def good(good_bytes, tmp_path):
    """The trace in the folder where commands run."""
    (tmp_path / "good.h5").write_bytes(good_bytes)
    return "good.h5"


def missing(path, _good):
    pass


def truncated(path, good):
    path.write_bytes(good[: len(good) // 2])


def empty(path, _good):
    path.write_bytes(b"")


def text(path, _good):
    path.write_text("no trace\n")


def folder(path, _good):
    path.mkdir()


def foreign_hdf5(path, _good):
    with h5py.File(path, "w") as file:
        file["x"] = [1, 2]


def newer_version(path, good):
    path.write_bytes(good)
    with h5py.File(path, "r+") as file:
        file.attrs["format_version"] = "2.0"


BAD = [
    (missing, "No such file"),
    (truncated, "bad.h5"),
    (empty, "is empty"),
    (text, "not an HDF5 file"),
    (folder, "is a folder"),
    (foreign_hdf5, "bad.h5"),
    (newer_version, "2.0"),
]


@pytest.mark.parametrize("command", [["check-duplicates"], ["diff"], ["diff", "good.h5"]], ids=" ".join)
@pytest.mark.parametrize(("make", "word"), BAD, ids=[make.__name__ for make, _ in BAD])
def test_a_bad_trace_is_one_line_and_exit_2(run, good, tmp_path, command, make, word):
    make(tmp_path / "bad.h5", (tmp_path / good).read_bytes())
    before = sorted(tmp_path.iterdir())
    done = run(*command, "bad.h5")
    assert (done.status, done.stdout) == (2, "")
    assert done.error.startswith("bad.h5: ")
    assert word in done.error
    assert sorted(tmp_path.iterdir()) == before


def test_one_bad_trace_among_good_ones_is_named(run, good):
    done = run("check-duplicates", good, "nowhere.h5", good)
    assert done.status == 2
    assert done.error.startswith("nowhere.h5: ")


@pytest.mark.parametrize("command", ["check-duplicates", "diff"])
def test_the_report_never_goes_over_an_input(run, good, tmp_path, command):
    before = (tmp_path / good).read_bytes()
    done = run(command, good, "-o", good, "-f")
    assert done.status == 2
    assert "good.h5 is an input of this command" in done.error
    assert (tmp_path / good).read_bytes() == before


@pytest.mark.parametrize("command", ["check-duplicates", "diff"])
def test_an_existing_report_is_kept_unless_forced(run, good, tmp_path, command):
    (tmp_path / "report.txt").write_text("mine")
    done = run(command, good, good if command == "diff" else "good.h5", "-o", "report.txt")
    assert done.status == 2
    assert "report.txt exists" in done.error
    assert (tmp_path / "report.txt").read_text() == "mine"
