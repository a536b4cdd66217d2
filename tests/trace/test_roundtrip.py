"""Random records: written, then read with plain h5py and with the reader, against a model in plain Python."""

import tempfile
from pathlib import Path

import h5py
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_samples import make_model, make_run

from moeinspect.trace.reader import read_trace
from moeinspect.trace.schema import RequestRecord
from moeinspect.trace.writer import TraceWriter

EXPERTS = (3, 128, 255, 256, 257, 1000)
ID_DTYPES = (np.uint8, np.int8, np.uint16, np.int16, np.int32, np.int64, np.uint64)
SPECIAL = (-1, -128, 0, 127, 254, 255, 256, 257, 65534, 65535, 65536, 2**31 - 1, 2**63 - 1, 2**64 - 1)
CHARACTERS = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
TEXT = st.text(CHARACTERS, min_size=1, max_size=30)


@st.composite
def models(draw):
    hidden = draw(st.integers(1, 4))
    moe = draw(st.sets(st.integers(0, hidden - 1), min_size=1))
    return make_model(
        num_hidden_layers=hidden,
        moe_layers=tuple(sorted(moe)),
        num_experts=draw(st.sampled_from(EXPERTS)),
        top_k=draw(st.integers(1, 3)),
        layer_axis=draw(st.sampled_from(["all", "moe"])),
    )


@st.composite
def records(draw, model, name):
    prompt, output = draw(st.integers(0, 5)), draw(st.integers(0, 4))
    n = draw(st.integers(0, prompt + output))
    shape = (n, model.num_captured_layers, model.top_k)
    dtype = draw(st.sampled_from(ID_DTYPES))
    limits = np.iinfo(dtype)
    cells = st.sampled_from([v for v in SPECIAL if limits.min <= v <= limits.max]) | st.integers(
        0, min(model.num_experts - 1, int(limits.max))
    )
    count = int(np.prod(shape))
    ids = draw(st.lists(cells, min_size=count, max_size=count))
    small = st.integers(0, 2**15)
    counts = {
        field: draw(small)
        for field in ("start_pos", "cached_tokens", "num_retractions", "num_drafted", "num_accepted")
    }

    def column(values, dtype):
        return np.asarray(draw(st.lists(values, min_size=n, max_size=n)), dtype=dtype)

    tokens = st.integers(0, 2**31 - 1)
    return RequestRecord(
        id=name,
        sample=draw(st.integers(0, 3)),
        prompt_ids=np.asarray(draw(st.lists(tokens, min_size=prompt, max_size=prompt)), np.int32),
        output_ids=np.asarray(draw(st.lists(tokens, min_size=output, max_size=output)), np.int32),
        expert_ids=np.asarray(ids, dtype=dtype).reshape(shape),
        validity=column(st.integers(0, 2), np.uint8),
        origin=column(st.integers(0, 5), np.uint8),
        worker=column(st.integers(0, 1), np.uint16),
        step=column(st.integers(-1, 2**31 - 1), np.int32),
        slot=column(st.integers(-1, 2**31 - 1), np.int32),
        row_weight_version=column(st.integers(0, 1), np.uint16),
        weights=draw(st.none() | st.just(np.linspace(0, 1, count, dtype=np.float32).reshape(shape))),
        finish_reason=draw(st.integers(0, 3)),
        weight_version=draw(st.integers(0, 1)),
        num_weight_versions=draw(st.integers(1, 2)),
        dp_rank=draw(small),
        **counts,
    )


@st.composite
def traces(draw):
    model = draw(models())
    names = draw(st.lists(TEXT, max_size=4, unique=True))
    return model, [draw(records(model, name)) for name in names]


def expected_cells(model, record):
    """Ids, validity and invalid cells of one record, cell by cell, as the format describes them."""
    largest = 255 if model.num_experts <= 256 else 65535
    axis = range(model.num_hidden_layers) if model.layer_axis == "all" else model.moe_layers
    ids, validity, invalid = [], [], []
    for row, row_ids in enumerate(record.expert_ids.tolist()):
        claim = int(record.validity[row])
        held = []
        for layer, cell in zip(axis, row_ids, strict=True):
            if claim == 1 or layer not in model.moe_layers:
                held.append([largest] * model.top_k)
                continue
            held.append([value if 0 <= value <= largest else largest for value in cell])
            invalid += [
                (row, layer, slot, min(value, 2**63 - 1))
                for slot, value in enumerate(cell)
                if not 0 <= value <= largest
            ]
        ids.append(held)
        validity.append(3 if any(entry[0] == row for entry in invalid) else claim)
    return ids, validity, invalid


@settings(max_examples=40, deadline=None)
@given(traces())
def test_what_is_written_is_what_is_read(trace):
    model, written = trace
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.h5"
        options = {"worker_names": ("a", "b"), "weight_versions": ("one", "zwei ü"), "with_weights": True}
        with TraceWriter(path, make_run(), model, **options) as writer:
            for record in written:
                writer.append(record)
        check_with_h5py(path, model, written)
        check_with_reader(path, model, written)


def check_with_h5py(path, model, written):
    with h5py.File(path, "r") as file:
        requests, rows = file["requests"], file["rows"]
        assert file["weight_versions"].asstr()[()].tolist() == ["one", "zwei ü"]
        assert requests["id"].asstr()[()].tolist() == [record.id for record in written]
        assert rows["expert_ids"].dtype == (np.uint8 if model.num_experts <= 256 else np.uint16)
        cells = rows["invalid_cells"]
        all_invalid = list(zip(*(cells[name][()].tolist() for name in cells_order), strict=True))
        expected_invalid, next_row, next_token = [], 0, 0
        for number, record in enumerate(written):
            ids, validity, invalid = expected_cells(model, record)
            assert requests["row_start"][number] == next_row
            assert requests["token_start"][number] == next_token
            here = slice(next_row, next_row + len(ids))
            assert rows["expert_ids"][here].tolist() == ids
            assert rows["validity"][here].tolist() == validity
            expected_invalid += [(row + next_row, *rest) for row, *rest in invalid]
            tokens = [*record.prompt_ids.tolist(), *record.output_ids.tolist()]
            assert file["tokens"][next_token : next_token + len(tokens)].tolist() == tokens
            assert (requests["prompt_len"][number], requests["output_len"][number]) == (
                len(record.prompt_ids),
                len(record.output_ids),
            )
            for name in ("sample", "start_pos", "finish_reason", "num_accepted", "dp_rank", "weight_version"):
                assert requests[name][number] == getattr(record, name)
            for name in ("origin", "worker", "step", "slot"):
                assert rows[name][here].tolist() == getattr(record, name).tolist()
            assert rows["weight_version"][here].tolist() == record.row_weight_version.tolist()
            next_row, next_token = next_row + len(ids), next_token + len(tokens)
        assert all_invalid == expected_invalid
        assert len(rows["validity"]) == len(rows["expert_ids"]) == next_row


cells_order = ("row", "layer", "slot", "value")


def check_with_reader(path, model, written):
    trace = read_trace(path)
    assert trace.model == model
    assert trace.run.complete
    assert trace.weight_versions == ("one", "zwei ü")
    assert trace.worker_names == ("a", "b")
    assert trace.requests.id.tolist() == [record.id for record in written]
    cells, invalid = trace.rows.invalid_cells, []
    for number, record in enumerate(written):
        rows = trace.row_range(number)
        ids, validity, bad = expected_cells(model, record)
        invalid += [(row + rows.start, *rest) for row, *rest in bad]
        assert trace.rows.expert_ids[rows].tolist() == ids
        assert trace.rows.validity[rows].tolist() == validity
        assert trace.rows.slot[rows].tolist() == record.slot.tolist()
        assert trace.tokens_of(number).tolist() == [*record.prompt_ids.tolist(), *record.output_ids.tolist()]
        assert trace.requests.start_pos[number] == record.start_pos
        weights = trace.rows.weights[rows]
        expected = np.full_like(weights, np.nan) if record.weights is None else record.weights
        assert np.array_equal(weights, expected, equal_nan=True)
    found = zip(
        cells.row.tolist(), cells.layer.tolist(), cells.slot.tolist(), cells.value.tolist(), strict=True
    )
    assert list(found) == invalid
