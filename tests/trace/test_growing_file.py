"""The view of a file that is being written, against HDF5's own reading of it."""

import h5py
import numpy as np
import pytest
from trace_samples import make_record, open_writer, write_trace

from moeinspect.trace.growing_file import GrowingFile, closed_superblock, lookup3


def test_the_checksum_is_hdf5s(tmp_path):
    for libver in ("v108", "v110", "latest"):
        h5py.File(tmp_path / "t.h5", "w", libver=libver).close()
        head = (tmp_path / "t.h5").read_bytes()[:48]
        assert lookup3(head[:44]) == int.from_bytes(head[44:], "little")


@pytest.mark.parametrize(
    ("data", "value"),
    [(b"", 0xDEADBEEF), (b"Four score and seven years ago", 0x17770551)],
)
def test_the_checksum_has_the_values_that_its_author_published(data, value):
    assert lookup3(data) == value


def test_an_open_file_looks_closed(tmp_path):
    writer = open_writer(tmp_path / "t.h5")
    for seed in range(3):
        writer.append(make_record(seed))
    with h5py.File(GrowingFile(str(tmp_path / "t.h5")), "r") as view:
        assert np.array_equal(view["rows/expert_ids"][20:], make_record(2).expert_ids)
        assert view.attrs["complete"] == 0
    writer.close()


def test_a_closed_file_stays_the_same_but_for_its_end(tmp_path):
    head = write_trace(tmp_path / "t.h5").read_bytes()[:48]
    end = int.from_bytes(head[28:36], "little")
    assert closed_superblock(head, end) == head


def test_reads_beyond_the_end_give_zeros_and_others_the_file(tmp_path):
    path = write_trace(tmp_path / "t.h5")
    data = path.read_bytes()
    with GrowingFile(str(path)) as view:
        assert view.size == len(data)
        view.seek(40)
        assert view.read(60)[8:] == data[48:100]
        view.seek(len(data) - 5)
        assert view.read(12) == data[-5:] + bytes(7)
        assert view.tell() == len(data) + 7


@pytest.mark.parametrize("position", [8, 11, 30, 47])
def test_a_damaged_superblock_is_refused(tmp_path, position):
    data = bytearray(write_trace(tmp_path / "t.h5").read_bytes())
    data[position] ^= 0x41
    (tmp_path / "t.h5").write_bytes(data)
    with pytest.raises(ValueError, match="superblock is damaged"):
        GrowingFile(str(tmp_path / "t.h5"))
