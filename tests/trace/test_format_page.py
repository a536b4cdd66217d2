"""The page on the trace format: its examples run, and it names every column."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from trace_samples import LAYERS, make_record, write_trace

from moeinspect.trace.columns import CELL_COLUMNS, EVENT_COLUMNS, REQUEST_COLUMNS, ROW_COLUMNS
from moeinspect.trace.reader import read_trace

PAGE = (Path(__file__).parents[2] / "docs" / "trace-format.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def run(program, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout


def test_the_example_reads_the_ids_of_one_request(tmp_path):
    lines = run(EXAMPLES[0], write_trace(tmp_path / "t.h5"), "r1").splitlines()
    expected = [
        f"{row} 0 {dict(zip(LAYERS, cells.tolist(), strict=True))}"
        for row, cells in enumerate(make_record(1).expert_ids)
    ]
    assert lines == expected


def test_the_example_of_a_producer_writes_a_trace(tmp_path):
    run(EXAMPLES[1], tmp_path / "t.h5")
    trace = read_trace(tmp_path / "t.h5")
    assert trace.requests.id.tolist() == ["first"]
    assert trace.tokens_of(0).tolist() == [5, 9, 2, 7, 1]
    assert np.array_equal(trace.rows.expert_ids, [[[0, 3], [1, 2]]] * 4)
    assert (trace.run.complete, trace.run.engine, trace.notes) == (True, "mine", ())


def table(heading):
    """Rows of the table below a heading: the names in its first cell, and the whole line."""
    section = PAGE.split(f"\n### {heading}", 1)[1].split("\n#", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [(re.findall(r"`([\w/]+)`", line.split("|")[1]), line) for line in lines]


@pytest.mark.parametrize(
    ("group", "columns"),
    [
        ("/requests", REQUEST_COLUMNS),
        ("/rows", (*ROW_COLUMNS, *CELL_COLUMNS)),
        ("/events", EVENT_COLUMNS),
    ],
)
def test_the_page_names_each_column_with_its_dtype_and_whether_it_is_needed(group, columns):
    lines = {name: line for names, line in table(f"`{group}`") for name in names}
    for column in columns:
        line = lines[column.path.removeprefix(f"{group}/")]
        dtype = "string" if column.dtype.kind == "S" else column.dtype.name
        assert f"| enum {dtype} |" in line if column.enum else f"| {dtype} |" in line
        if group == "/events":
            assert ("may be missing" in line) == (column.default is not None)
        elif column in CELL_COLUMNS:
            assert "| optional |" in line
        elif column.default is None:
            assert "| yes |" in line
        else:
            default = f"`{column.enum(column.default).name.lower()}`" if column.enum else column.default
            assert f"| ({default}) |" in line
