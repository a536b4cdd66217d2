"""Small traces for tests of the trace format: records are drawn from a seed, so a reader can check them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from moeinspect.trace.schema import Events, ModelFacts, RequestRecord, RunInfo
from moeinspect.trace.writer import TraceWriter

LAYERS = (1, 2, 4)
TOP_K = 4


def make_run(**changes: Any) -> RunInfo:
    facts = {
        "producer": "moeinspect",
        "producer_version": "0.1.0",
        "created": "2026-12-01T00:00:00+00:00",
        "complete": False,
        "engine": "local",
        "engine_version": "0.1.0",
        "machine_key": "cpu",
        "deterministic": True,
        "run_config": {"model": "builtin:tiny", "overlap": True},
    }
    return RunInfo(**(facts | changes))


def make_model(**changes: Any) -> ModelFacts:
    facts = {
        "name": "tiny",
        "architecture": "Qwen3MoeForCausalLM",
        "fingerprint": "ab" * 8,
        "num_hidden_layers": 5,
        "num_experts": 32,
        "top_k": TOP_K,
        "layer_axis": "moe",
        "moe_layers": LAYERS,
    }
    return ModelFacts(**(facts | changes))


def make_record(seed: int, prompt: int = 7, output: int = 4, **changes: Any) -> RequestRecord:
    """Request `r<seed>`: all its rows are real and a function of the seed."""
    rng = np.random.default_rng(seed)
    n = prompt + output - 1
    columns = {
        "id": f"r{seed}",
        "prompt_ids": rng.integers(0, 1000, prompt, dtype=np.int32),
        "output_ids": rng.integers(0, 1000, output, dtype=np.int32),
        "expert_ids": rng.integers(0, 32, (n, len(LAYERS), TOP_K)),
        "validity": np.zeros(n, np.uint8),
        "origin": rng.integers(0, 3, n).astype(np.uint8),
        "worker": rng.integers(0, 2, n).astype(np.uint16),
        "step": np.arange(n, dtype=np.int32),
        "slot": rng.integers(0, 64, n, dtype=np.int32),
        "row_weight_version": np.zeros(n, np.uint16),
        "weights": rng.random((n, len(LAYERS), TOP_K), dtype=np.float32),
        "margin": rng.random((n, len(LAYERS)), dtype=np.float32),
        "num_drafted": seed,
    }
    return RequestRecord(**(columns | changes))


def make_events(count: int) -> Events:
    return Events(
        worker=np.arange(count, dtype=np.uint16) % 2,
        pid=np.full(count, 4711, np.int32),
        lane=np.arange(count, dtype=np.uint8) % 4,
        step=np.arange(count, dtype=np.int32),
        kind=np.asarray(["forward", "copy"] * count, dtype=np.str_)[:count],
        start=np.arange(count) / 10.0,
        end=np.arange(count) / 10.0 + 0.05,
    )


def open_writer(path: Path, *, model: ModelFacts | None = None, **options: Any) -> TraceWriter:
    options = {
        "worker_names": ("prefill-0", "decode-0"),
        "with_weights": True,
        "with_margins": True,
    } | options
    run = options.pop("run", make_run())
    return TraceWriter(path, run, model or make_model(), with_events=True, **options)


def write_trace(path: Path, count: int = 3) -> Path:
    """A complete trace of requests `r0` to `r<count - 1>` and five events."""
    with open_writer(path) as writer:
        for seed in range(count):
            writer.append(make_record(seed))
        writer.append_events(make_events(5))
    return path


def edit(path: Path, target: Path, change: Any) -> Path:
    """A copy of the trace with `change(h5py.File)` done to it."""
    shutil.copy(path, target)
    with h5py.File(target, "r+") as file:
        change(file)
    return target


def replace_dataset(file: h5py.File, path: str, data: Any, **options: Any) -> None:
    """Puts other data in a dataset's place; its attributes stay."""
    attributes = dict(file[path].attrs)
    del file[path]
    file.create_dataset(path, data=data, **options)
    for name, value in attributes.items():
        file[path].attrs[name] = value


def copy_as_foreign(source: Path, target: Path, **options: Any) -> Path:
    """The same content as another producer may store it: HDF5 defaults, variable-length strings."""
    with h5py.File(source, "r") as old, h5py.File(target, "w", **options) as new:
        for name, value in old.attrs.items():
            new.attrs[name] = value

        def visit(name: str, item: h5py.Group | h5py.Dataset) -> None:
            if isinstance(item, h5py.Group):
                made = new.create_group(name)
            elif item.dtype.kind == "S":
                texts = item.asstr()[()].astype(object)
                made = new.create_dataset(name, data=texts, dtype=h5py.string_dtype())
            else:
                made = new.create_dataset(name, data=item[()])
            for key, value in item.attrs.items():
                made.attrs[key] = value

        old.visititems(visit)
    return target
