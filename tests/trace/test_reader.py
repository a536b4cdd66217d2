"""What the reader makes of files: ours, other producers', and those that break the format."""

import json
import os
import subprocess
import sys

import h5py
import numpy as np
import pytest
from trace_samples import (
    LAYERS,
    TOP_K,
    copy_as_foreign,
    edit,
    make_events,
    make_model,
    make_record,
    make_run,
    open_writer,
    replace_dataset,
    write_trace,
)

from moeinspect.errors import InputError
from moeinspect.trace.reader import read_trace


@pytest.fixture
def trace_file(tmp_path):
    return write_trace(tmp_path / "good.h5")


def assert_same(left, right):
    """Two traces hold the same, the path aside."""
    assert (left.run, left.model, left.weight_versions) == (right.run, right.model, right.weight_versions)
    assert (left.worker_names, left.notes) == (right.worker_names, right.notes)
    assert np.array_equal(left.tokens, right.tokens)
    for group in ("requests", "rows", "events"):
        ours, theirs = getattr(left, group), getattr(right, group)
        for name in ours.__dataclass_fields__:
            if name == "invalid_cells":
                continue
            one, other = getattr(ours, name), getattr(theirs, name)
            assert one.dtype == other.dtype and np.array_equal(one, other), name
    for name in left.rows.invalid_cells.__dataclass_fields__:
        assert np.array_equal(getattr(left.rows.invalid_cells, name), getattr(right.rows.invalid_cells, name))


def test_a_trace_comes_back_as_it_was_written(trace_file):
    trace = read_trace(trace_file)
    assert trace.path == str(trace_file)
    assert trace.run == make_run(complete=True)
    assert trace.model == make_model()
    assert trace.notes == ()
    for number in range(3):
        record, rows = make_record(number), trace.row_range(number)
        assert np.array_equal(trace.rows.expert_ids[rows], record.expert_ids)
        assert np.array_equal(trace.rows.margin[rows], record.margin)
        assert trace.requests.num_drafted[number] == number
    assert trace.rows.expert_ids.dtype == np.uint8
    events = make_events(5)
    for name in events.__dataclass_fields__:
        assert np.array_equal(getattr(trace.events, name), getattr(events, name))


def test_reading_does_not_import_torch(trace_file):
    program = f"import sys; from moeinspect.trace.reader import read_trace; read_trace({str(trace_file)!r}); "
    program += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


@pytest.mark.parametrize("libver", ["earliest", "v108", "v110", "latest"])
def test_variable_length_strings_and_other_layouts_are_read_alike(trace_file, tmp_path, libver):
    foreign = copy_as_foreign(trace_file, tmp_path / "foreign.h5", libver=libver)
    assert_same(read_trace(foreign), read_trace(trace_file))


def test_compressed_and_oddly_chunked_columns_are_read_alike(trace_file, tmp_path):
    def change(file):
        for name in ("rows/expert_ids", "rows/weights", "rows/margin", "tokens", "requests/prompt_len"):
            data = file[name][()]
            chunks = (7, *[max(1, n // 2) for n in data.shape[1:]])[: data.ndim]
            chunks = tuple(min(c, n) for c, n in zip(chunks, data.shape, strict=True))
            replace_dataset(file, name, data, chunks=chunks, compression="gzip", shuffle=True)

    assert_same(read_trace(edit(trace_file, tmp_path / "t.h5", change)), read_trace(trace_file))


def test_plain_integers_in_place_of_enums_are_read_alike(trace_file, tmp_path):
    def change(file):
        for name in ("rows/origin", "requests/finish_reason", "events/lane"):
            replace_dataset(file, name, np.asarray(file[name][()], dtype=np.int64))

    assert_same(read_trace(edit(trace_file, tmp_path / "t.h5", change)), read_trace(trace_file))


def test_an_enum_that_counts_otherwise_is_read_by_its_names(trace_file, tmp_path):
    numbers = {"verify": 1, "prefill": 7, "decode": 0}

    def change(file):
        ours = {0: "prefill", 1: "decode", 2: "verify"}
        data = np.asarray([numbers[ours[value]] for value in file["rows/origin"][()].tolist()], np.uint8)
        replace_dataset(file, "rows/origin", data, dtype=h5py.enum_dtype(numbers, basetype="u1"))

    assert_same(read_trace(edit(trace_file, tmp_path / "t.h5", change)), read_trace(trace_file))


def test_an_enum_value_of_an_unknown_name_is_refused(trace_file, tmp_path):
    def change(file):
        data = np.zeros(len(file["rows/origin"]), np.uint8)
        replace_dataset(file, "rows/origin", data, dtype=h5py.enum_dtype({"guess": 0}, basetype="u1"))

    with pytest.raises(InputError, match="/rows/origin holds -1"):
        read_trace(edit(trace_file, tmp_path / "t.h5", change))


@pytest.mark.parametrize("dtype", ["i1", "u2", "i4", ">i4", "i8", "u8"])
def test_ids_of_any_integer_type_come_in_the_canonical_one(trace_file, tmp_path, dtype):
    def change(file):
        replace_dataset(file, "rows/expert_ids", file["rows/expert_ids"][()].astype(dtype))

    assert_same(read_trace(edit(trace_file, tmp_path / "t.h5", change)), read_trace(trace_file))


def test_ids_of_a_wider_type_that_have_no_place_become_invalid_and_are_kept(trace_file, tmp_path):
    def change(file):
        ids = file["rows/expert_ids"][()].astype(np.int32)
        ids[2, 0, 1] = -1
        ids[2, 2, 3] = 255  # no expert has this number: in the canonical type it would mean "no id"
        ids[9, 1, 0] = 256 + 7
        ids[12, 1] = -1
        file["rows/validity"][12] = 1
        replace_dataset(file, "rows/expert_ids", ids)

    trace = read_trace(edit(trace_file, tmp_path / "t.h5", change))
    cells = trace.rows.invalid_cells
    assert list(zip(cells.row, cells.layer, cells.slot, cells.value, strict=True)) == [
        (2, LAYERS[0], 1, -1),
        (2, LAYERS[2], 3, 255),
        (9, LAYERS[1], 0, 263),
    ]
    assert trace.rows.validity[[2, 9, 12]].tolist() == [3, 3, 1]
    assert np.flatnonzero(trace.rows.validity).tolist() == [2, 9, 12]
    assert trace.rows.expert_ids.dtype == np.uint8
    assert (trace.rows.expert_ids[12] == 255).all()
    assert trace.rows.expert_ids[2, 0, 1] == trace.rows.expert_ids[9, 1, 0] == 255


def test_expert_255_of_256_is_an_expert_in_any_type(tmp_path):
    ids = np.full((10, len(LAYERS), TOP_K), 255)
    with open_writer(tmp_path / "t.h5", model=make_model(num_experts=256)) as writer:
        writer.append(make_record(0, expert_ids=ids))

    def change(file):
        replace_dataset(file, "rows/expert_ids", ids.astype(np.int32))

    for path in (tmp_path / "t.h5", edit(tmp_path / "t.h5", tmp_path / "wide.h5", change)):
        trace = read_trace(path)
        assert (trace.rows.expert_ids == 255).all()
        assert not trace.rows.validity.any() and len(trace.rows.invalid_cells.row) == 0


def test_ids_of_a_narrower_type_keep_their_values_and_their_sentinel(tmp_path):
    model = make_model(num_experts=512, layer_axis="all")
    ids = np.full((10, 5, TOP_K), 7)
    ids[4, 1] = 255
    with open_writer(tmp_path / "t.h5", model=model, with_weights=False, with_margins=False) as writer:
        writer.append(make_record(0, expert_ids=ids))

    def change(file):
        narrow = np.where(file["rows/expert_ids"][()] > 255, 255, file["rows/expert_ids"][()])
        replace_dataset(file, "rows/expert_ids", narrow.astype(np.uint8))

    trace = read_trace(edit(tmp_path / "t.h5", tmp_path / "narrow.h5", change))
    assert trace.rows.expert_ids.dtype == np.uint16
    assert (trace.rows.expert_ids[:, [0, 3]] == 65535).all()
    assert (trace.rows.expert_ids[4, 1] == 255).all()
    assert not trace.rows.validity.any()


OPTIONAL = {
    "requests/sample": 0,
    "requests/finish_reason": 3,
    "requests/cached_tokens": 0,
    "requests/num_retractions": 0,
    "requests/num_drafted": 0,
    "requests/num_accepted": 0,
    "requests/weight_version": 0,
    "requests/num_weight_versions": 1,
    "requests/dp_rank": 0,
    "rows/origin": 5,
    "rows/worker": 0,
    "rows/step": -1,
    "rows/slot": -1,
    "rows/weight_version": 0,
}


@pytest.mark.parametrize("name", OPTIONAL)
def test_a_missing_column_of_provenance_gets_a_neutral_value(trace_file, tmp_path, name):
    trace = read_trace(edit(trace_file, tmp_path / "t.h5", lambda file: file.__delitem__(name)))
    group, column = name.split("/")
    assert (getattr(getattr(trace, group), column) == OPTIONAL[name]).all()
    assert len(getattr(getattr(trace, group), column)) == len(getattr(trace, group))


@pytest.mark.parametrize(
    "name",
    [
        *("requests/id", "requests/prompt_len", "requests/output_len", "requests/token_start"),
        *("requests/row_start", "requests/num_rows", "requests/start_pos", "tokens"),
        *(
            "rows/expert_ids",
            "rows/validity",
            "model/moe_layers",
            "requests",
            "rows",
            "model",
            "events/start",
        ),
        "rows/invalid_cells/value",
    ],
)
def test_a_missing_object_that_answers_depend_on_is_named(trace_file, tmp_path, name):
    path = edit(trace_file, tmp_path / "t.h5", lambda file: file.__delitem__(name))
    with pytest.raises(InputError, match=f"^{path}: there is no (dataset )?/{name}"):
        read_trace(path)


def test_other_optional_objects_may_be_missing(trace_file, tmp_path):
    def change(file):
        for name in ("rows/weights", "rows/margin", "rows/invalid_cells", "events", "weight_versions"):
            del file[name]
        del file["model/capture_exempt_layers"]
        del file["rows/worker"].attrs["names"]
        for name in set(file.attrs) - {"format", "format_version"}:
            del file.attrs[name]

    trace = read_trace(edit(trace_file, tmp_path / "t.h5", change))
    assert trace.rows.weights is None and trace.rows.margin is None and trace.events is None
    assert trace.weight_versions == ("default",)
    assert trace.worker_names == ("worker-0", "worker-1")
    assert trace.run.slot_order == "unknown" and not trace.run.complete and not trace.run.deterministic
    assert len(trace.requests) == 3


def attribute(owner, name, value):
    def change(file):
        file[owner].attrs[name] = value

    return change


def column(name, value, position=1):
    def change(file):
        file[name][position] = value

    return change


def dataset(name, data):
    return lambda file: replace_dataset(file, name, data)


BROKEN = {
    "another format": (attribute("/", "format", "something"), "not a trace"),
    "no format": (lambda file: file.attrs.__delitem__("format"), "not a trace"),
    "newer major": (attribute("/", "format_version", "2.0"), r"version 2\.0; .* reads 1\.0; upgrade"),
    "newer minor": (attribute("/", "format_version", "1.1"), r"version 1\.1; .* reads 1\.0; upgrade"),
    "tenth minor": (attribute("/", "format_version", "1.10"), r"version 1\.10; .*; upgrade"),
    "older version": (attribute("/", "format_version", "0.9"), r"version 0\.9; .*; record"),
    "odd version": (attribute("/", "format_version", "one"), "version one"),
    "config no JSON": (attribute("/", "run_config", "{"), "run_config of / is not JSON"),
    "config a list": (attribute("/", "run_config", "[]"), "run_config of / is not a JSON object"),
    "config nested": (attribute("/", "run_config", "[" * 100_000), "run_config of / is not JSON"),
    "faults no list": (attribute("/", "injected_faults", '"x"'), "injected_faults of / is not a JSON list"),
    "complete is text": (attribute("/", "complete", "yes"), "complete of / is not a whole number"),
    "engine a number": (attribute("/", "engine", 3), "engine of / is not text"),
    "engine a list": (attribute("/", "engine", ["a", "b"]), "engine of / is not a single value"),
    "slot order": (attribute("/", "slot_order", "shuffled"), "slot_order of / is"),
    "id space": (attribute("/", "id_space", "other"), "id_space of / is"),
    "axis": (attribute("model", "layer_axis", "some"), "layer_axis of /model is"),
    "no experts": (attribute("model", "num_experts", 0), "num_experts of /model is 0"),
    "too many experts": (attribute("model", "num_experts", 65537), "num_experts of /model is 65537"),
    "top_k above": (attribute("model", "num_experts", 3), "top_k 4 of /model is above num_experts 3"),
    "top_k": (attribute("model", "top_k", 5), "/rows/expert_ids has 4 slots, where /model says 5"),
    "no top_k": (lambda file: file["model"].attrs.__delitem__("top_k"), "no attribute top_k of /model"),
    "axis and shape": (attribute("model", "layer_axis", "all"), "has 3 layers, where /model says 5"),
    "few layers": (attribute("model", "num_hidden_layers", 4), "moe_layers names layers outside"),
    "layers descend": (dataset("model/moe_layers", [4, 2, 1]), "not a list of ascending"),
    "layers repeat": (dataset("model/moe_layers", [1, 1, 4]), "not a list of ascending"),
    "no MoE layer": (dataset("model/moe_layers", np.zeros(0, np.int32)), "not a list of ascending"),
    "layers are text": (dataset("model/moe_layers", ["a", "b"]), "no list of layer indices"),
    "exempt outside": (dataset("model/capture_exempt_layers", [5]), "capture_exempt_layers names layers"),
    "ids flat": (dataset("rows/expert_ids", np.zeros((30, 12), np.uint8)), "has 2 axes, not 3"),
    "ids are floats": (dataset("rows/expert_ids", np.zeros((30, 3, 4))), "dtype float64, not an integer"),
    "ids short": (dataset("rows/expert_ids", np.zeros((29, 3, 4), np.uint8)), "/rows/expert_ids has 29"),
    "weights shape": (dataset("rows/weights", np.zeros((30, 3, 3))), "/rows/weights has 3 slots"),
    "weights are ints": (dataset("rows/weights", np.zeros((30, 3, 4), int)), "not a floating-point"),
    "margin shape": (dataset("rows/margin", np.zeros((30, 2))), "/rows/margin has 2 layers"),
    "validity": (column("rows/validity", 4), r"/rows/validity holds 4"),
    "validity short": (dataset("rows/validity", np.zeros(29, np.uint8)), "/rows/validity has 29"),
    "origin": (dataset("rows/origin", np.full(30, 6)), "/rows/origin holds 6"),
    "step": (column("rows/step", -2), "/rows/step holds -2"),
    "step is text": (dataset("rows/step", ["a"] * 30), "/rows/step has dtype"),
    "step is a table": (dataset("rows/step", np.zeros((30, 2), np.int32)), "/rows/step has 2 axes"),
    "worker": (column("rows/worker", 2), r"/rows/worker counts 3 workers, its attribute names has 2"),
    "names": (attribute("rows/worker", "names", "[1]"), "names of /rows/worker is not a JSON list"),
    "row version": (column("rows/weight_version", 1), "/rows/weight_version holds 1; /weight_versions has 1"),
    "version": (column("requests/weight_version", 7), "/requests/weight_version holds 7"),
    "id twice": (column("requests/id", b"r0"), "'r0', sample 0, is there twice"),
    "id empty": (column("requests/id", b""), "number 1 has an empty id"),
    "id not UTF-8": (column("requests/id", b"\xff"), "/requests/id holds text that is not UTF-8"),
    "ids are numbers": (dataset("requests/id", [1, 2, 3]), "/requests/id is no column of strings"),
    "id missing": (dataset("requests/id", ["a", "b"]), "/requests/prompt_len has 3|has 2"),
    "row start": (column("requests/row_start", 9), "rows of request 'r1': its range starts at 9, inside"),
    "row gap": (column("requests/row_start", 11), r"rows of request .* leaves \[10, 11\) to no request"),
    "row end": (column("requests/num_rows", 11, 2), "rows of request 'r2': its range reaches to 31 of 30"),
    "row huge": (
        column("requests/row_start", 2**63 - 1),
        "rows of request 'r1': its range reaches to 9223372036854775817 of 30",
    ),
    "row before": (column("requests/row_start", -1), "/requests/row_start holds -1"),
    "rows of nobody": (column("requests/num_rows", 9, 2), r"leaves \[29, 30\) to no request"),
    "token start": (column("requests/token_start", 12), "tokens of request 'r1'|leaves"),
    "prompt": (column("requests/prompt_len", 6), "tokens of request 'r1'|leaves"),
    "prompt negative": (column("requests/prompt_len", -1), "/requests/prompt_len holds -1"),
    "start_pos": (column("requests/start_pos", -1), "/requests/start_pos holds -1"),
    "large": (dataset("requests/start_pos", [0, 2**40, 0]), "/requests/start_pos holds 1099511627776"),
    "tokens short": (dataset("tokens", np.zeros(32, np.int32)), "reaches to 33 of 32"),
    "tokens floats": (dataset("tokens", np.zeros(33)), "/tokens has dtype float64"),
    "token negative": (column("tokens", -5), "/tokens holds -5"),
    "events": (dataset("events/end", np.zeros(4)), "/events/.* has 5 entries, /events/end has 4"),
    "lane": (dataset("events/lane", np.full(5, 4)), "/events/lane holds 4"),
    "dataset a group": (
        lambda file: (file.__delitem__("tokens"), file.create_group("tokens")),
        "/tokens is no dataset",
    ),
    "dataset a scalar": (dataset("tokens", 3), "/tokens is a single value"),
    "elsewhere": (
        lambda file: (
            file.__delitem__("tokens"),
            file.create_dataset("tokens", (33,), "i4", external=[("elsewhere", 0, 132)]),
        ),
        "/tokens is stored in another file",
    ),
    "external link": (
        lambda file: (
            file.__delitem__("tokens"),
            file.__setitem__("tokens", h5py.ExternalLink("elsewhere.h5", "/tokens")),
        ),
        "tokens",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_breaks_the_format_is_refused_with_one_line(trace_file, tmp_path, case):
    change, words = BROKEN[case]
    path = edit(trace_file, tmp_path / "t.h5", change)
    with pytest.raises(InputError, match=words) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_cell_outside_the_ids_is_refused(tmp_path):
    record = make_record(0)
    record.expert_ids[3, 2, 1] = -1
    with open_writer(tmp_path / "t.h5") as writer:
        writer.append(record)
    for name, value in (("layer", 3), ("slot", 4)):
        path = edit(tmp_path / "t.h5", tmp_path / "bad.h5", column(f"rows/invalid_cells/{name}", value, 0))
        with pytest.raises(InputError, match="invalid_cells names layers or slots"):
            read_trace(path)


def test_an_empty_trace_is_a_trace_with_a_note(tmp_path):
    path = tmp_path / "t.h5"
    open_writer(path).close()
    trace = read_trace(path)
    assert len(trace.requests) == len(trace.rows) == len(trace.tokens) == 0
    assert trace.rows.expert_ids.shape == (0, len(LAYERS), TOP_K)
    assert trace.notes == ("no request had ended",)


def test_a_request_without_rows_is_kept(tmp_path):
    nothing = make_record(0, prompt=1, output=0)
    with open_writer(tmp_path / "t.h5") as writer:
        writer.append(nothing)
        writer.append(make_record(1))
        writer.append(make_record(2, prompt=0, output=1))
    trace = read_trace(tmp_path / "t.h5")
    assert trace.requests.num_rows.tolist() == [0, 10, 0]
    assert trace.tokens_of(0).tolist() == nothing.prompt_ids.tolist()


def test_an_incomplete_trace_is_read_with_a_note(tmp_path):
    writer = open_writer(tmp_path / "t.h5")
    writer.append(make_record(0))
    writer.close(complete=False)
    trace = read_trace(tmp_path / "t.h5")
    assert not trace.run.complete
    assert trace.notes == ("the run did not end cleanly; 1 request had ended",)


@pytest.mark.parametrize(
    "column", ["requests/id", "requests/dp_rank", "rows/slot", "rows/expert_ids", "tokens"]
)
def test_half_a_request_at_the_end_of_an_incomplete_trace_is_left_out(trace_file, tmp_path, column):
    def change(file):
        file.attrs["complete"] = 0
        file[column].resize(len(file[column]) - 1, axis=0)

    trace = read_trace(edit(trace_file, tmp_path / "t.h5", change))
    assert trace.requests.id.tolist() == ["r0", "r1"]
    assert len(trace.rows) == 20 and len(trace.tokens) == 22
    assert np.array_equal(trace.rows.expert_ids[10:], make_record(1).expert_ids)


def test_more_than_half_a_request_missing_is_no_kill_but_damage(trace_file, tmp_path):
    def change(file):
        file.attrs["complete"] = 0
        file["rows/expert_ids"].resize(9, axis=0)

    with pytest.raises(InputError, match="rows or tokens of request 'r0' are not there"):
        read_trace(edit(trace_file, tmp_path / "t.h5", change))


def test_injected_faults_may_be_deleted(trace_file, tmp_path):
    path = edit(trace_file, tmp_path / "t.h5", lambda file: file.attrs.__delitem__("injected_faults"))
    assert_same(read_trace(path), read_trace(trace_file))


def test_names_of_workers_and_run_config_come_back(tmp_path):
    run = make_run(run_config={"a": [1, None, "ü"]}, injected_faults=("no-merge",), baseline_of="x.h5")
    with open_writer(tmp_path / "t.h5", run=run) as writer:
        writer.append(make_record(0))
    trace = read_trace(tmp_path / "t.h5")
    assert trace.worker_names == ("prefill-0", "decode-0")
    assert (trace.run.run_config, trace.run.injected_faults) == ({"a": [1, None, "ü"]}, ("no-merge",))
    assert trace.run.baseline_of == "x.h5"


def test_files_that_are_no_traces_are_refused_with_one_line(tmp_path):
    (tmp_path / "folder.h5").mkdir()
    (tmp_path / "empty.h5").write_bytes(b"")
    (tmp_path / "text.h5").write_text("hello\n" * 1000)
    os.mkfifo(tmp_path / "pipe.h5")
    h5py.File(tmp_path / "other.h5", "w").close()
    words = {
        "missing.h5": "cannot be read: No such file",
        "folder.h5": "is a folder",
        "empty.h5": "is empty",
        "text.h5": "is not an HDF5 file",
        "pipe.h5": "is not an ordinary file",
        "other.h5": "not a trace",
        "a\0b.h5": "cannot be read",
        "text.h5/x": "cannot be read: Not a directory",
        "x" * 300: "cannot be read: File name too long",
    }
    for name, expected in words.items():
        with pytest.raises(InputError, match=expected):
            read_trace(tmp_path / name)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_refused(trace_file):
    trace_file.chmod(0)
    with pytest.raises(InputError, match="cannot be read: Permission denied"):
        read_trace(trace_file)


def test_a_file_left_open_by_a_writer_without_swmr_is_refused(trace_file, tmp_path):
    program = (
        "import h5py, os, sys; f = h5py.File(sys.argv[1], 'r+'); f.attrs['x'] = 1; f.flush(); os._exit(0)"
    )
    path = edit(trace_file, tmp_path / "t.h5", lambda file: None)
    subprocess.run([sys.executable, "-c", program, path], check=True)
    with pytest.raises(InputError, match="another program has it open for writing"):
        read_trace(path)


def test_json_in_a_fixed_length_attribute_is_read(trace_file, tmp_path):
    def change(file):
        for name in list(file.attrs):
            if isinstance(file.attrs[name], str):
                file.attrs[name] = np.bytes_(file.attrs[name])
        file["rows/worker"].attrs["names"] = np.bytes_(json.dumps(["prefill-0", "decode-0"]))

    assert_same(read_trace(edit(trace_file, tmp_path / "t.h5", change)), read_trace(trace_file))
