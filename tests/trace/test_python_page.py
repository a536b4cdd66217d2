"""The page on reading a trace from Python: its example runs and prints what the trace holds."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
from trace_samples import make_record, write_trace

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "python.md").read_text()


def test_the_example_prints_what_the_trace_holds(tmp_path):
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    path = write_trace(tmp_path / "t.h5")
    done = subprocess.run(
        [sys.executable, "-c", program, path], capture_output=True, text=True, check=True, timeout=60
    )
    record = make_record(1)
    ids = np.concatenate([make_record(seed).expert_ids for seed in range(3)])
    busiest = [np.bincount(ids[:, place].reshape(-1), minlength=32).argmax() for place in range(3)]
    assert done.stdout.splitlines() == [
        "local 32 experts, top 4",
        "3 requests, 30 rows",
        f"{record.prompt_ids[:4]} 4 (10, 3, 4)",
        *str(record.expert_ids[5:8, 1].astype(np.uint8)).splitlines(),
        str(record.slot[:4]),
        f"busiest experts {np.asarray(busiest)}",
    ]
    assert done.stderr == ""
