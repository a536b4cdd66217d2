"""Lays out a new trace: every group, dataset and attribute exists before the first row.

While a file is open for SWMR writing nothing can be added to it but rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import h5py
import numpy as np

from moeinspect.trace.columns import (
    CELL_COLUMNS,
    EVENT_COLUMNS,
    EVENT_WORKER_PATH,
    IDS_PATH,
    MARGIN_PATH,
    REQUEST_COLUMNS,
    REQUEST_ID,
    ROW_COLUMNS,
    ROWS_PER_CHUNK,
    TOKENS,
    WEIGHT_VERSION_BYTES,
    WEIGHT_VERSIONS_PATH,
    WEIGHTS_PATH,
    WORKER_PATH,
    utf8,
)
from moeinspect.trace.hdf5_output import GrowingDataset, set_attributes
from moeinspect.trace.schema import FORMAT, FORMAT_VERSION, ModelFacts, RunInfo


def set_root_attributes(file: h5py.File, run: RunInfo) -> None:
    """Attributes of `/`. `complete` is first, in the header's first block: it is changed in place later."""
    # Faults are named in `injected_faults` alone: a run_config is what a person would set.
    options = {name: value for name, value in run.run_config.items() if name != "faults"}
    set_attributes(
        file,
        {
            "complete": 0,
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "producer": run.producer,
            "producer_version": run.producer_version,
            "created": run.created,
            "engine": run.engine,
            "engine_version": run.engine_version,
            "machine_key": run.machine_key,
            "deterministic": int(run.deterministic),
            "run_config": json.dumps(options, allow_nan=False, default=str),
            "injected_faults": json.dumps(list(run.injected_faults)),
            "baseline_of": run.baseline_of,
            "id_space": run.id_space,
            "slot_order": run.slot_order,
        },
    )


def add_model(file: h5py.File, model: ModelFacts) -> None:
    """The group `/model`."""
    group = file.create_group("model")
    set_attributes(
        group,
        {
            "name": model.name,
            "architecture": model.architecture,
            "fingerprint": model.fingerprint,
            "num_hidden_layers": model.num_hidden_layers,
            "num_experts": model.num_experts,
            "top_k": model.top_k,
            "layer_axis": model.layer_axis,
        },
    )
    # Chunked although they never grow: contiguous data waits in a buffer that HDF5 cannot drop again when
    # the disk is full, and then crashes.
    for name in ("moe_layers", "capture_exempt_layers"):
        layers = np.asarray(getattr(model, name), dtype=np.int32)
        GrowingDataset(file, f"/model/{name}", layers.dtype, chunk=64).write(0, layers)


def add_weight_versions(file: h5py.File, versions: Sequence[str]) -> None:
    """The dataset `/weight_versions`."""
    texts = [version.encode("utf-8") for version in versions]
    width = max([WEIGHT_VERSION_BYTES, *(len(text) for text in texts)])
    dataset = GrowingDataset(file, WEIGHT_VERSIONS_PATH, utf8(width), chunk=16)
    dataset.write(0, np.asarray(texts, dtype=f"S{width}"))


def add_columns(
    file: h5py.File, model: ModelFacts, *, weights: bool, margins: bool, events: bool
) -> dict[str, GrowingDataset]:
    """Every dataset that grows, empty, by path."""
    columns = [*ROW_COLUMNS, TOKENS, *CELL_COLUMNS, *REQUEST_COLUMNS, REQUEST_ID]
    columns += EVENT_COLUMNS if events else ()
    datasets = {column.path: GrowingDataset.of_column(file, column) for column in columns}
    for path, (dtype, shape) in _array_shapes(model, weights, margins).items():
        datasets[path] = GrowingDataset(file, path, dtype, ROWS_PER_CHUNK, shape)
    return datasets


def name_workers(datasets: Mapping[str, GrowingDataset], names: Sequence[str]) -> None:
    """What the numbers in the worker columns stand for, as a JSON list beside them."""
    for path in (WORKER_PATH, EVENT_WORKER_PATH):
        if path in datasets:
            set_attributes(datasets[path].dataset, {"names": json.dumps(list(names))})


def _array_shapes(
    model: ModelFacts, weights: bool, margins: bool
) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    layers, slots = model.num_captured_layers, model.top_k
    shapes: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {IDS_PATH: (model.id_dtype, (layers, slots))}
    if weights:
        shapes[WEIGHTS_PATH] = (np.dtype(np.float32), (layers, slots))
    if margins:
        shapes[MARGIN_PATH] = (np.dtype(np.float32), (layers,))
    return shapes
