"""What an open trace gives out is what the whole trace holds, however the file stores it."""

import h5py
import numpy as np
import pytest
from trace_samples import (
    copy_as_foreign,
    edit,
    make_model,
    make_record,
    open_writer,
    replace_dataset,
    write_trace,
)

import moeinspect
from moeinspect.errors import InputError
from moeinspect.trace.columns import IDS_PATH
from moeinspect.trace.mapped import FileMap, MappedRows
from moeinspect.trace.reader import open_trace, read_trace

ROWS = ("expert_ids", "validity", "origin", "worker", "step", "slot", "weights", "margin")


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory):
    """Twelve requests of several thousand rows, so that every column has more than one chunk."""
    path = tmp_path_factory.mktemp("opened") / "good.h5"
    with open_writer(path) as writer:
        for seed in range(12):
            writer.append(make_record(seed, prompt=10 + 97 * seed, output=1 + 40 * seed))
    return path


STORAGE = {
    "as written": None,
    "contiguous": {},
    "gzip": {"chunks": (100, 3, 4), "compression": "gzip"},
    "shuffled": {"chunks": (1000, 3, 4), "shuffle": True, "compression": 1},
    "chunks across slots": {"chunks": (64, 2, 3)},
    "int64": {"dtype": np.int64, "chunks": (77, 3, 4)},
    "big-endian": {"dtype": ">i4"},
    "uint16": {"dtype": np.uint16},
}
MAPPED = {"as written", "contiguous", "int64", "uint16"}


@pytest.fixture(params=STORAGE)
def stored(request, trace_file, tmp_path):
    """The same trace with its ids stored another way, and whether they can be read where they lie."""
    options = STORAGE[request.param]
    if options is None:
        return trace_file, True
    with h5py.File(trace_file) as file:
        ids = file[IDS_PATH][:].astype(options.get("dtype", np.uint8))
    kept = {name: value for name, value in options.items() if name != "dtype"}
    path = edit(
        trace_file,
        tmp_path / "other.h5",
        lambda file: replace_dataset(file, IDS_PATH, ids, maxshape=(None, 3, 4) if kept else None, **kept),
    )
    return path, request.param in MAPPED


def test_ids_are_mapped_where_the_file_holds_them_as_memory_would(stored):
    path, is_mapped = stored
    with open_trace(path) as trace:
        assert isinstance(trace.source(IDS_PATH), MappedRows) == is_mapped


def test_any_range_and_any_rows_are_those_of_the_whole(stored, trace_file):
    path, _ = stored
    whole, rng = read_trace(trace_file).rows.expert_ids, np.random.default_rng(0)
    with open_trace(path) as trace:
        source = trace.source(IDS_PATH)
        for _ in range(50):
            start, stop = np.sort(rng.integers(0, len(whole) + 1, 2))
            assert np.array_equal(source.read(start, stop), whole[start:stop])
        for count in (0, 1, 7, 500):
            rows = rng.integers(0, len(whole), count)
            assert np.array_equal(source.take(rows), whole[rows])
            assert np.array_equal(source.take(np.sort(rows)), whole[np.sort(rows)])
        assert np.array_equal(source.take(np.arange(300, 2000)), whole[300:2000])


@pytest.mark.parametrize("numbers", [[], [0], [11], [3, 4, 5], [7, 2, 2, 9], list(range(12))])
def test_picked_requests_are_those_of_the_whole_trace(stored, trace_file, numbers):
    whole = read_trace(trace_file)
    with open_trace(stored[0]) as trace:
        picked = trace.load(np.asarray(numbers, dtype=np.int64))
    assert picked.requests.id.tolist() == whole.requests.id[numbers].tolist()
    assert len(picked.rows) == whole.requests.num_rows[numbers].sum()
    for place, number in enumerate(numbers):
        assert np.array_equal(picked.tokens_of(place), whole.tokens_of(number))
        for name in ROWS:
            ours, theirs = getattr(picked.rows, name), getattr(whole.rows, name)
            assert np.array_equal(ours[picked.row_range(place)], theirs[whole.row_range(number)]), name


def test_picked_requests_keep_their_invalid_cells(tmp_path):
    path = tmp_path / "invalid.h5"
    with open_writer(path) as writer:
        for seed in range(4):
            ids = np.asarray(make_record(seed).expert_ids)
            ids[seed, 1, 2] = -1 - seed
            writer.append(make_record(seed, expert_ids=ids))
    with open_trace(path) as trace:
        cells = trace.load(np.asarray([3, 1])).rows.invalid_cells
    assert cells.value.tolist() == [-4, -2]
    assert cells.row.tolist() == [3, 10 + 1]


def test_a_trace_that_is_being_written_gives_what_has_ended(tmp_path):
    path = tmp_path / "growing.h5"
    with open_writer(path) as writer:
        writer.append(make_record(1))
        with moeinspect.open_trace(path) as trace:
            assert len(trace) == 1
            assert np.array_equal(trace[0].expert_ids, make_record(1).expert_ids)
            writer.append(make_record(2))
            assert len(trace) == 1
        with moeinspect.open_trace(path) as trace:
            assert np.array_equal(trace["r2"].expert_ids, make_record(2).expert_ids)


def test_a_request_is_found_by_number_id_and_sample(tmp_path):
    with open_writer(tmp_path / "t.h5") as writer:
        for sample in range(2):
            writer.append(make_record(5, sample=sample))
    with moeinspect.open_trace(tmp_path / "t.h5") as trace:
        assert [one.sample for one in trace] == [0, 1]
        assert trace["r5"].number == 0 and trace["r5", 1].number == 1 and trace[-1].number == 1
        for missing in ("r6", ("r5", 2)):
            with pytest.raises(InputError, match=r"no request 'r[56]'"):
                trace[missing]


def test_one_layer_of_some_rows_is_taken_by_its_index_in_the_model(trace_file):
    with moeinspect.open_trace(trace_file) as trace:
        view, record = trace["r3"], make_record(3, prompt=10 + 97 * 3, output=1 + 40 * 3)
        assert np.array_equal(view.experts(5, 20, layer=2), record.expert_ids[5:20, 1])
        assert np.array_equal(view.prompt_ids, record.prompt_ids)
        assert np.array_equal(view.output_ids, record.output_ids)
        assert np.array_equal(view.weights, record.weights)
        assert np.array_equal(view.column("slot"), record.slot)
        with pytest.raises(InputError, match="no layer 3; the trace holds 1, 2, 4"):
            view.experts(layer=3)
        with pytest.raises(InputError, match=r"has rows \[0, "):
            view.experts(5, 10**6)
        with pytest.raises(InputError, match="no column 'speed' of rows"):
            view.column("speed")


def test_a_column_that_the_file_lacks_has_its_default(trace_file, tmp_path):
    path = edit(trace_file, tmp_path / "less.h5", lambda file: file.__delitem__("/rows/slot"))
    with moeinspect.open_trace(path) as trace:
        assert trace["r1"].column("slot").tolist() == [-1] * len(trace["r1"])


@pytest.mark.parametrize("kind", [ValueError, KeyError, OSError, RuntimeError])
def test_errors_of_the_readers_own_code_stay_what_they_are(trace_file, kind):
    with pytest.raises(kind, match="mine"), moeinspect.open_trace(trace_file):
        raise kind("mine")


def test_arrays_stay_valid_after_the_trace_was_closed(trace_file):
    with moeinspect.open_trace(trace_file) as trace:
        ids = trace[11].expert_ids
    assert np.array_equal(ids, make_record(11, prompt=10 + 97 * 11, output=1 + 40 * 11).expert_ids)


def test_memory_that_was_given_back_reads_the_same_again(trace_file):
    with open_trace(trace_file) as trace:
        source = trace.source(IDS_PATH)
        before = source.read(0, 900).copy()
        source.release(0, 900)
        assert np.array_equal(source.read(0, 900), before)


def test_a_foreign_file_with_a_user_block_is_read_through_hdf5(trace_file, tmp_path):
    path = copy_as_foreign(trace_file, tmp_path / "block.h5", userblock_size=512)
    whole = read_trace(trace_file)
    with open_trace(path) as trace:
        assert not isinstance(trace.source(IDS_PATH), MappedRows)
        assert np.array_equal(trace.load().rows.expert_ids, whole.rows.expert_ids)


def test_a_trace_without_requests_opens(tmp_path):
    path = write_trace(tmp_path / "empty.h5", count=0)
    with open_trace(path) as trace:
        assert len(trace) == 0 and list(trace) == []
        assert trace.load().rows.expert_ids.shape == (0, 3, 4)


def test_rows_beyond_the_mapped_file_are_not_mapped(trace_file, tmp_path):
    with h5py.File(trace_file) as file:
        dataset = file[IDS_PATH]
        short = tmp_path / "short"
        short.write_bytes(b"x" * 4096)
        assert MappedRows.of(FileMap(short), dataset, len(dataset)) is None
        assert MappedRows.of(FileMap(trace_file), dataset, len(dataset)) is not None


def test_wide_experts_are_given_in_sixteen_bits(tmp_path):
    path = tmp_path / "wide.h5"
    with open_writer(path, model=make_model(num_experts=384)) as writer:
        ids = np.random.default_rng(0).integers(0, 384, (10, 3, 4))
        writer.append(make_record(0, expert_ids=ids))
    with moeinspect.open_trace(path) as trace:
        assert trace[0].expert_ids.dtype == np.uint16
        assert np.array_equal(trace[0].expert_ids, ids)
