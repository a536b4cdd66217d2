"""Where a trace may be written, and what happens to what stands there."""

import os
import shutil
import subprocess

import h5py
import pytest
from trace_samples import make_record, open_writer, write_trace

from moeinspect.errors import OutputError
from moeinspect.trace import writer as writer_module
from moeinspect.trace.output import PendingFile
from moeinspect.trace.writer import check_output_path


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_a_free_path_passes_the_check_and_nothing_is_left(tmp_path):
    check_output_path(tmp_path / "t.h5", False)
    assert names(tmp_path) == []


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(
    ("name", "words"),
    [("folder", "is a folder"), ("missing/t.h5", "no folder"), ("file/t.h5", "no folder"), ("..", "no file")],
)
def test_a_path_that_cannot_be_a_file_is_refused_with_and_without_force(tmp_path, name, words, force):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match=words):
        check_output_path(tmp_path / name, force)
    with pytest.raises(OutputError, match=words):
        open_writer(tmp_path / name, force=force)
    assert names(tmp_path) == ["file", "folder"]


def test_a_file_that_exists_is_refused_without_force(tmp_path):
    (tmp_path / "t.h5").write_text("old")
    check_output_path(tmp_path / "t.h5", True)
    with pytest.raises(OutputError, match=r"t\.h5 exists; overwrite it with --force"):
        check_output_path(tmp_path / "t.h5", False)
    with pytest.raises(OutputError, match="exists"):
        open_writer(tmp_path / "t.h5")
    assert (tmp_path / "t.h5").read_text() == "old"


def test_a_pipe_is_refused_with_force(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OutputError, match="not an ordinary file"):
        check_output_path(tmp_path / "pipe", True)


def read_only(folder):
    """Makes the folder refuse new files, for root as well; skips where that is not possible."""
    if os.geteuid() != 0:
        folder.chmod(0o555)
        return lambda: folder.chmod(0o755)
    chattr = shutil.which("chattr")
    if chattr is None or subprocess.run([chattr, "+i", folder], capture_output=True).returncode:
        pytest.skip("as root a folder cannot be made read-only here")
    return lambda: subprocess.run([chattr, "-i", folder], check=True)


def test_a_read_only_folder_is_refused(tmp_path):
    folder = tmp_path / "ro"
    folder.mkdir()
    undo = read_only(folder)
    try:
        for attempt in (lambda: check_output_path(folder / "t.h5"), lambda: open_writer(folder / "t.h5")):
            with pytest.raises(OutputError, match="does not take a new file"):
                attempt()
    finally:
        undo()
    assert names(folder) == []


def test_the_path_holds_a_readable_trace_from_the_start(tmp_path):
    writer = open_writer(tmp_path / "t.h5")
    assert names(tmp_path) == ["t.h5"]
    with h5py.File(tmp_path / "t.h5", "r", swmr=True) as file:
        assert len(file["requests/id"]) == 0
    writer.close()


def test_force_keeps_the_old_file_until_the_first_request_has_ended(tmp_path):
    path = tmp_path / "t.h5"
    path.write_text("old")
    with open_writer(path, force=True) as writer:
        assert path.read_text() == "old"
        writer.append(make_record(0))
        assert names(tmp_path) == ["t.h5"]
        with h5py.File(path, "r", swmr=True) as file:
            assert len(file["requests/id"]) == 1
    with h5py.File(path, "r") as file:
        assert file.attrs["complete"] == 1


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_force_keeps_the_old_file_if_no_request_ends(tmp_path, error):
    path = tmp_path / "t.h5"
    path.write_text("old")
    with pytest.raises(error), open_writer(path, force=True):
        raise error
    assert path.read_text() == "old"
    assert names(tmp_path) == ["t.h5"]


def test_force_keeps_the_old_file_if_the_new_one_cannot_be_made(tmp_path, monkeypatch):
    path = tmp_path / "t.h5"
    path.write_text("old")

    def fail(*_args, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer_module, "add_columns", fail)
    with pytest.raises(OutputError, match="No space left on device"):
        open_writer(path, force=True)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["t.h5"]


def test_force_replaces_the_old_file_by_a_complete_trace_without_requests(tmp_path):
    path = tmp_path / "t.h5"
    path.write_text("old")
    open_writer(path, force=True).close()
    with h5py.File(path, "r") as file:
        assert file.attrs["complete"] == 1


def test_force_writes_through_a_symbolic_link(tmp_path):
    (tmp_path / "real.h5").write_text("old")
    (tmp_path / "link.h5").symlink_to("real.h5")
    with open_writer(tmp_path / "link.h5", force=True) as writer:
        writer.append(make_record(0))
    assert (tmp_path / "link.h5").is_symlink()
    with h5py.File(tmp_path / "real.h5", "r") as file:
        assert len(file["requests/id"]) == 1


def test_abandoning_takes_the_file_away(tmp_path):
    writer = open_writer(tmp_path / "t.h5")
    writer.append(make_record(0))
    writer.abandon()
    writer.close()
    assert names(tmp_path) == []


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_appears_meanwhile_is_not_overwritten(tmp_path, monkeypatch, links):
    if not links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError(1, "not permitted")))
    pending = PendingFile(tmp_path / "t.h5", force=False)
    pending.temporary.write_text("new")
    (tmp_path / "t.h5").write_text("somebody else's")
    with pytest.raises(OSError if not links else OutputError):
        pending.publish()
    pending.discard()
    assert (tmp_path / "t.h5").read_text() == "somebody else's"
    assert names(tmp_path) == ["t.h5"]


def test_a_file_system_without_hard_links_works_too(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError(1, "not permitted")))
    path = write_trace(tmp_path / "t.h5")
    assert names(tmp_path) == ["t.h5"]
    with h5py.File(path, "r") as file:
        assert len(file["requests/id"]) == 3
