"""How fast a trace is written, against a plain write and fsync of the same expert ids to the same disk.

    python benchmarks/trace_write.py [--rows 512] [--requests 1000] [--repeats 5] [--folder .]

Both sides run in turn, in one process. Every request is flushed when it ends, so few rows a request cost
more. The trace holds 14 bytes a row beyond its ids, and the tokens. Prints the median ratio, 1 being the
speed of the plain write.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from moeinspect.trace.reader import read_trace
from moeinspect.trace.schema import ModelFacts, RequestRecord, RunInfo
from moeinspect.trace.writer import TraceWriter

LAYERS, TOP_K, EXPERTS = 48, 8, 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=512, help="rows of each request")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path())
    options = parser.parse_args()
    ids = np.random.default_rng(0).integers(0, EXPERTS, (options.rows, LAYERS, TOP_K)).astype(np.uint8)
    megabytes = options.requests * ids.nbytes / 1e6
    print(f"{megabytes:.0f} MB of ids, {options.rows} rows a request, load {os.getloadavg()[0]:.1f}")
    ratios = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for number in range(options.repeats):
            plain = write_plain(Path(folder) / "plain", ids, options.requests)
            traced, path = write_trace(Path(folder) / f"{number}.h5", ids, options.requests)
            started = time.perf_counter()
            read_trace(path)
            reading = time.perf_counter() - started
            cells = options.requests * options.rows * LAYERS
            ratios.append(plain / traced)
            print(
                f"plain {megabytes / plain:.0f} MB/s, trace {megabytes / traced:.0f} MB/s, "
                f"ratio {ratios[-1]:.2f}, {1e3 * traced / options.requests:.2f} ms a request, "
                f"{path.stat().st_size / cells:.2f} bytes a cell, read {megabytes / reading:.0f} MB/s"
            )
            path.unlink()
    print(f"median ratio {statistics.median(ratios):.2f}")


def write_plain(path: Path, ids: np.ndarray, requests: int) -> float:
    started = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(requests):
            file.write(ids.data)
        os.fsync(file.fileno())
    elapsed = time.perf_counter() - started
    path.unlink()
    return elapsed


def write_trace(path: Path, ids: np.ndarray, requests: int) -> tuple[float, Path]:
    run = RunInfo("benchmark", "0", "", False, "local", "0", "", True, {})
    model = ModelFacts("m", "", "", LAYERS, EXPERTS, TOP_K, "moe", tuple(range(LAYERS)))
    rows = len(ids)
    started = time.perf_counter()
    with TraceWriter(path, run, model, worker_names=("unified",)) as writer:
        for number in range(requests):
            writer.append(
                RequestRecord(
                    id=f"request-{number}",
                    prompt_ids=np.zeros(rows // 2, np.int32),
                    output_ids=np.zeros(rows - rows // 2 + 1, np.int32),
                    expert_ids=ids,
                    validity=np.zeros(rows, np.uint8),
                    origin=np.zeros(rows, np.uint8),
                    worker=np.zeros(rows, np.uint16),
                    step=np.zeros(rows, np.int32),
                    slot=np.zeros(rows, np.int32),
                    row_weight_version=np.zeros(rows, np.uint16),
                )
            )
    return time.perf_counter() - started, path


if __name__ == "__main__":
    main()
