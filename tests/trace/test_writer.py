"""What the writer leaves, read with plain h5py."""

import json
import shutil
import subprocess

import h5py
import numpy as np
import pytest
from trace_samples import (
    LAYERS,
    TOP_K,
    make_events,
    make_model,
    make_record,
    make_run,
    open_writer,
    write_trace,
)

from moeinspect.errors import InputError, OutputError
from moeinspect.trace.schema import FinishReason

STRINGS = (
    *("format", "format_version", "producer", "producer_version", "created", "engine", "engine_version"),
    *("machine_key", "run_config", "injected_faults", "baseline_of", "id_space", "slot_order"),
)
DTYPES = {
    "requests/sample": "i4",
    "requests/prompt_len": "i4",
    "requests/output_len": "i4",
    "requests/token_start": "i8",
    "requests/row_start": "i8",
    "requests/num_rows": "i4",
    "requests/start_pos": "i4",
    "requests/finish_reason": "u1",
    "requests/cached_tokens": "i4",
    "requests/num_retractions": "i4",
    "requests/num_drafted": "i4",
    "requests/num_accepted": "i4",
    "requests/weight_version": "u2",
    "requests/num_weight_versions": "u2",
    "requests/dp_rank": "i4",
    "tokens": "i4",
    "rows/expert_ids": "u1",
    "rows/validity": "u1",
    "rows/origin": "u1",
    "rows/worker": "u2",
    "rows/step": "i4",
    "rows/slot": "i4",
    "rows/weight_version": "u2",
    "rows/weights": "f4",
    "rows/margin": "f4",
    "rows/invalid_cells/row": "i8",
    "rows/invalid_cells/layer": "i8",
    "rows/invalid_cells/slot": "i8",
    "rows/invalid_cells/value": "i8",
    "events/worker": "u2",
    "events/pid": "i4",
    "events/lane": "u1",
    "events/step": "i4",
    "events/start": "f8",
    "events/end": "f8",
    "model/moe_layers": "i4",
    "model/capture_exempt_layers": "i4",
}


def test_every_object_and_attribute_of_the_format_is_there(tmp_path):
    with h5py.File(write_trace(tmp_path / "t.h5"), "r") as file:
        assert set(file.attrs) == {*STRINGS, "complete", "deterministic"}
        assert all(type(file.attrs[name]) is str for name in STRINGS)
        assert file.attrs["format"] == "moeinspect-trace"
        assert file.attrs["format_version"] == "1.0"
        assert (file.attrs["complete"], file.attrs["deterministic"]) == (1, 1)
        assert json.loads(file.attrs["run_config"]) == {"model": "builtin:tiny", "overlap": True}
        assert file.attrs["injected_faults"] == "[]"
        assert dict(file["model"].attrs) == {
            "name": "tiny",
            "architecture": "Qwen3MoeForCausalLM",
            "fingerprint": "ab" * 8,
            "num_hidden_layers": 5,
            "num_experts": 32,
            "top_k": TOP_K,
            "layer_axis": "moe",
        }
        assert {name: file[name].dtype.str.lstrip("|<") for name in DTYPES} == DTYPES
        strings = ("requests/id", "weight_versions", "events/kind")
        for name in strings:
            info = h5py.check_string_dtype(file[name].dtype)
            assert info.encoding == "utf-8" and info.length is not None
        found = []
        file.visititems(lambda name, item: found.append(name) if isinstance(item, h5py.Dataset) else None)
        assert sorted(found) == sorted([*DTYPES, *strings])


def test_enums_are_spelled_as_the_format_says(tmp_path):
    with h5py.File(write_trace(tmp_path / "t.h5"), "r") as file:
        assert h5py.check_enum_dtype(file["rows/origin"].dtype) == {
            "prefill": 0,
            "decode": 1,
            "verify": 2,
            "prefix-cache": 3,
            "transferred": 4,
            "imported": 5,
        }
        assert h5py.check_enum_dtype(file["requests/finish_reason"].dtype) == {
            "length": 0,
            "stop": 1,
            "abort": 2,
            "unknown": 3,
        }
        lanes = h5py.check_enum_dtype(file["events/lane"].dtype)
        assert lanes == {"host": 0, "compute": 1, "copy": 2, "transfer": 3}
        assert h5py.check_enum_dtype(file["rows/validity"].dtype) is None


def test_chunks_are_1024_rows_of_everything_without_filters(tmp_path):
    with h5py.File(write_trace(tmp_path / "t.h5"), "r") as file:
        assert file["rows/expert_ids"].chunks == (1024, len(LAYERS), TOP_K)
        assert file["rows/weights"].chunks == (1024, len(LAYERS), TOP_K)
        assert file["rows/margin"].chunks == (1024, len(LAYERS))
        for name in DTYPES:
            assert file[name].compression is None and file[name].id.get_create_plist().get_nfilters() == 0


def test_a_closed_file_is_of_hdf5_1_10_and_read_by_its_tools(tmp_path):
    path = write_trace(tmp_path / "t.h5")
    assert path.read_bytes()[8] == 3  # the superblock's version
    with h5py.File(path, "r") as file:
        strategy = file.id.get_create_plist().get_file_space_strategy()[0]
        assert strategy == h5py.h5f.FSPACE_STRATEGY_PAGE
    if shutil.which("h5dump") is None:
        pytest.skip("h5dump is not installed")
    command = ["h5dump", "-d", "/requests/finish_reason", "-d", "/rows/expert_ids", path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "(0): length, length, length" in done.stdout
    assert str(make_record(0).expert_ids[0, 0, 0]) in done.stdout


def test_rows_of_a_request_stand_where_its_columns_say(tmp_path):
    path = tmp_path / "t.h5"
    records = [make_record(seed, prompt=400 * seed + 1, output=seed + 2) for seed in range(5)]
    with open_writer(path) as writer:
        for record in records:
            writer.append(record)
    with h5py.File(path, "r") as file:
        table = {name: column[()] for name, column in file["requests"].items()}
        for number, record in enumerate(records):
            first, count = table["row_start"][number], table["num_rows"][number]
            rows = slice(first, first + count)
            assert count == len(record.expert_ids)
            assert np.array_equal(file["rows/expert_ids"][rows], record.expert_ids)
            assert np.array_equal(file["rows/weights"][rows], record.weights)
            assert np.array_equal(file["rows/margin"][rows], record.margin)
            assert np.array_equal(file["rows/slot"][rows], record.slot)
            assert np.array_equal(file["rows/origin"][rows], record.origin)
            tokens = file["tokens"][table["token_start"][number] :][: len(record.prompt_ids) + number + 2]
            assert np.array_equal(tokens, [*record.prompt_ids, *record.output_ids])
            assert table["num_drafted"][number] == number
        assert file["requests/id"].asstr()[()].tolist() == [record.id for record in records]
        assert json.loads(file["rows/worker"].attrs["names"]) == ["prefill-0", "decode-0"]
        assert json.loads(file["events/worker"].attrs["names"]) == ["prefill-0", "decode-0"]


def test_ids_above_256_experts_are_stored_as_uint16(tmp_path):
    model = make_model(num_experts=257)
    record = make_record(0)
    record.expert_ids[2, 1, 3] = 256
    with open_writer(tmp_path / "t.h5", model=model) as writer:
        writer.append(record)
    with h5py.File(tmp_path / "t.h5", "r") as file:
        assert file["rows/expert_ids"].dtype == np.uint16
        assert np.array_equal(file["rows/expert_ids"], record.expert_ids)


def test_ids_that_do_not_fit_are_kept_beside_the_rows_and_never_wrapped(tmp_path):
    first, second = make_record(0), make_record(1)
    second.expert_ids[3, 2, 1] = -1
    second.expert_ids[3, 0, 0] = 256
    second.expert_ids[5, 1, 2] = 2**40
    with open_writer(tmp_path / "t.h5") as writer:
        writer.append(first)
        writer.append(second)
    with h5py.File(tmp_path / "t.h5", "r") as file:
        rows = file["rows"]
        start = int(file["requests/row_start"][1])
        cells = rows["invalid_cells"]
        found = list(zip(cells["row"], cells["layer"], cells["slot"], cells["value"], strict=True))
        assert found == [
            (start + 3, LAYERS[0], 0, 256),
            (start + 3, LAYERS[2], 1, -1),
            (start + 5, LAYERS[1], 2, 2**40),
        ]
        assert [rows["expert_ids"][row, LAYERS.index(layer), slot] for row, layer, slot, _ in found] == [
            255
        ] * 3
        assert np.flatnonzero(rows["validity"]).tolist() == [start + 3, start + 5]
        assert rows["validity"][start + 3] == rows["validity"][start + 5] == 3


def test_missing_rows_hold_the_sentinel_and_stay_missing(tmp_path):
    record = make_record(0)
    record.validity[4] = 1
    record.expert_ids[4] = -1
    with open_writer(tmp_path / "t.h5") as writer:
        writer.append(record)
    with h5py.File(tmp_path / "t.h5", "r") as file:
        assert (file["rows/expert_ids"][4] == 255).all()
        assert file["rows/validity"][4] == 1
        assert len(file["rows/invalid_cells/row"]) == 0


def test_dense_layers_hold_the_sentinel_when_the_axis_has_all_layers(tmp_path):
    model = make_model(layer_axis="all")
    ids = np.zeros((10, 5, TOP_K), np.int32)
    ids[:, [0, 3]] = -1
    ids[7, 0] = 70000
    with open_writer(tmp_path / "t.h5", model=model, with_weights=False, with_margins=False) as writer:
        writer.append(make_record(0, expert_ids=ids))
    with h5py.File(tmp_path / "t.h5", "r") as file:
        assert (file["rows/expert_ids"][:, [0, 3]] == 255).all()
        assert (file["rows/expert_ids"][:, list(LAYERS)] == 0).all()
        assert not file["rows/validity"][:].any()


def test_a_record_without_weights_gets_nan_where_the_trace_has_them(tmp_path):
    with open_writer(tmp_path / "t.h5") as writer:
        writer.append(make_record(0, weights=None, margin=None))
    with h5py.File(tmp_path / "t.h5", "r") as file:
        assert np.isnan(file["rows/weights"]).all() and np.isnan(file["rows/margin"]).all()


def test_faults_are_named_in_their_attribute_alone(tmp_path):
    run = make_run(run_config={"faults": ("no-merge",), "seed": 1}, injected_faults=("no-merge",))
    open_writer(tmp_path / "t.h5", run=run).close()
    with h5py.File(tmp_path / "t.h5", "r") as file:
        assert json.loads(file.attrs["injected_faults"]) == ["no-merge"]
        assert json.loads(file.attrs["run_config"]) == {"seed": 1}


def test_text_that_hdf5_cannot_hold_is_escaped_and_not_lost(tmp_path):
    run = make_run(baseline_of="a\udcffb\0c", run_config={"model": "\udcff"})
    open_writer(tmp_path / "t.h5", run=run).close()
    with h5py.File(tmp_path / "t.h5", "r") as file:
        assert file.attrs["baseline_of"] == "a\\udcffb\\0c"
        assert json.loads(file.attrs["run_config"]) == {"model": "\udcff"}


def test_a_second_request_of_the_same_id_and_sample_is_refused_and_the_first_stays(tmp_path):
    with open_writer(tmp_path / "t.h5") as writer:
        writer.append(make_record(0))
        writer.append(make_record(1, id="r0", sample=1))
        with pytest.raises(InputError, match="'r0', sample 0"):
            writer.append(make_record(2, id="r0"))
    with h5py.File(tmp_path / "t.h5", "r") as file:
        assert file["requests/sample"][:].tolist() == [0, 1]
        assert len(file["rows/validity"]) == 20


@pytest.mark.parametrize(
    "changes",
    [
        {"expert_ids": np.zeros((10, 2, TOP_K), np.int64)},
        {"expert_ids": np.zeros((10, 3, TOP_K), np.float32)},
        {"validity": np.zeros(9, np.uint8)},
        {"validity": np.full(10, 4, np.uint8)},
        {"origin": np.full(10, 6, np.uint8)},
        {"worker": np.full(10, 70000)},
        {"step": np.full(10, 2**31)},
        {"prompt_ids": np.full(7, 2**31)},
        {"weights": np.zeros((10, 3, 3), np.float32)},
        {"margin": np.zeros((10, 4), np.float32)},
        {"finish_reason": 9},
        {"num_weight_versions": 70000},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_record_that_does_not_fit_is_refused_before_anything_is_written(tmp_path, changes):
    with open_writer(tmp_path / "t.h5") as writer:
        writer.append(make_record(0))
        with pytest.raises(ValueError):
            writer.append(make_record(1, **changes))
        writer.append(make_record(2))
    with h5py.File(tmp_path / "t.h5", "r") as file:
        assert file["requests/id"].asstr()[()].tolist() == ["r0", "r2"]
        assert len(file["rows/validity"]) == len(file["rows/expert_ids"]) == 20


def test_an_id_that_is_too_long_is_refused(tmp_path):
    with open_writer(tmp_path / "t.h5") as writer, pytest.raises(InputError, match="121"):
        writer.append(make_record(0, id="x" * 121))


def test_events_are_kept_in_order_over_several_appends(tmp_path):
    with open_writer(tmp_path / "t.h5") as writer:
        writer.append_events(make_events(3))
        writer.append(make_record(0))
        writer.append_events(make_events(2))
        writer.append_events(make_events(0))
    with h5py.File(tmp_path / "t.h5", "r") as file:
        assert file["events/step"][:].tolist() == [0, 1, 2, 0, 1]
        assert file["events/kind"].asstr()[()].tolist() == ["forward", "copy", "forward", "forward", "copy"]
        assert np.allclose(file["events/end"][:3], [0.05, 0.15, 0.25])


def test_without_events_there_is_no_group_for_them(tmp_path):
    from moeinspect.trace.writer import TraceWriter

    with TraceWriter(tmp_path / "t.h5", make_run(), make_model(), worker_names=("unified",)) as writer:
        writer.append_events(make_events(3))
        writer.append(make_record(0))
    with h5py.File(tmp_path / "t.h5", "r") as file:
        assert "events" not in file
        assert "weights" not in file["rows"] and "margin" not in file["rows"]


def test_an_error_after_the_first_request_leaves_an_incomplete_and_closed_file(tmp_path):
    with pytest.raises(ZeroDivisionError), open_writer(tmp_path / "t.h5") as writer:
        writer.append(make_record(0, finish_reason=FinishReason.STOP))
        raise ZeroDivisionError
    with h5py.File(tmp_path / "t.h5", "r") as file:
        assert file.attrs["complete"] == 0
        assert file["requests/finish_reason"][:].tolist() == [1]


def test_an_error_before_the_first_request_leaves_no_file(tmp_path):
    with pytest.raises(ZeroDivisionError), open_writer(tmp_path / "t.h5"):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_before_the_first_request_leaves_an_empty_trace(tmp_path):
    with pytest.raises(KeyboardInterrupt), open_writer(tmp_path / "t.h5"):
        raise KeyboardInterrupt
    with h5py.File(tmp_path / "t.h5", "r") as file:
        assert file.attrs["complete"] == 0
        assert len(file["requests/id"]) == 0


def test_an_interrupt_inside_an_append_does_not_tear_the_request_apart(tmp_path, monkeypatch):
    from moeinspect.trace.hdf5_output import GrowingDataset

    plain, calls = GrowingDataset.write, 0

    def write(self, start, block):
        nonlocal calls
        plain(self, start, block)
        calls += 1
        if calls == interrupted_call:
            raise KeyboardInterrupt

    monkeypatch.setattr(GrowingDataset, "write", write)
    for interrupted_call in range(31, 58, 5):  # one append makes 31 calls, the weight versions one
        path, calls = tmp_path / f"{interrupted_call}.h5", 0
        with pytest.raises(KeyboardInterrupt), open_writer(path) as writer:
            for seed in range(9):
                writer.append(make_record(seed))
        with h5py.File(path, "r") as file:
            count = len(file["requests/id"])
            assert count == 1 + (interrupted_call > 32)
            assert {len(column) for column in file["requests"].values()} == {count}
            assert len(file["rows/validity"]) == len(file["rows/expert_ids"]) == 10 * count
            assert np.array_equal(file["rows/expert_ids"][-10:], make_record(count - 1).expert_ids)


def test_a_writer_that_was_closed_takes_nothing_and_can_be_closed_again(tmp_path):
    writer = open_writer(tmp_path / "t.h5")
    writer.append(make_record(0))
    writer.close()
    writer.close(complete=False)
    with pytest.raises(ValueError, match="closed"):
        writer.append(make_record(1))
    with h5py.File(tmp_path / "t.h5", "r") as file:
        assert file.attrs["complete"] == 1


def test_an_append_that_failed_is_reported_by_every_later_one(tmp_path, monkeypatch):
    from moeinspect.trace import writer as module

    writer = open_writer(tmp_path / "t.h5")
    writer.append(make_record(0))

    def full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "require_space", full)
    for seed in (1, 2):
        with pytest.raises(OutputError, match=r"No space left on device; .*: 1$"):
            writer.append(make_record(seed))
    writer.close()
    with h5py.File(tmp_path / "t.h5", "r") as file:
        assert file.attrs["complete"] == 0
        assert file["requests/id"].asstr()[()].tolist() == ["r0"]
