"""Layers that are exempt from capture: what a trace did not capture of them is neither wrong nor compared."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.cells import gather
from moeinspect.trace.schema import ModelFacts, Trace, Validity

_ROWS_PER_BLOCK = 1 << 16


def exempt_in_either(a: ModelFacts, b: ModelFacts) -> NDArray[np.int64]:
    """Absolute layers that one model or the other exempts, ascending."""
    return np.union1d(a.capture_exempt_layers, b.capture_exempt_layers).astype(np.int64)


def places_to_capture(trace: Trace) -> NDArray[np.int64]:
    """Places on axis 1 of the ids of the MoE layers that have to be captured."""
    layers, model = trace.axis_layers(), trace.model
    wanted = np.isin(layers, model.moe_layers) & ~np.isin(layers, model.capture_exempt_layers)
    return np.flatnonzero(wanted).astype(np.int64)


def is_captured(ids: NDArray[Any], model: ModelFacts) -> NDArray[np.bool_]:
    """Which cells [...] of ids [..., K] hold a choice: not "no id" alone, and with K > 1 not zeros alone."""
    stored_max = int(np.iinfo(ids.dtype).max)
    no_id = ids < 0 if ids.dtype.kind == "i" else np.zeros(ids.shape, dtype=bool)
    if stored_max >= model.num_experts:
        no_id = no_id | (ids == stored_max)
    captured = ~no_id.all(axis=-1)
    return np.asarray(captured & ids.any(axis=-1) if ids.shape[-1] > 1 else captured)


def real_rows(trace: Trace, exempt: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Rows [R] that claim to be real, or are invalid by nothing but what stands in `exempt` layers."""
    validity, cells = trace.rows.validity, trace.rows.invalid_cells
    real = validity == Validity.REAL
    if not len(exempt) or not len(cells.row):
        return np.asarray(real)
    excused, accused = np.zeros(len(validity), dtype=bool), np.zeros(len(validity), dtype=bool)
    inside = np.isin(cells.layer, exempt)
    excused[cells.row[inside]], accused[cells.row[~inside]] = True, True
    return np.asarray(real | ((validity == Validity.INVALID) & excused & ~accused))


def uncaptured_layers(trace: Trace, layers: NDArray[np.int64], rows: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Those of `layers`, all on the trace's axis, of which none of `rows` [R] holds a choice.

    In a top-1 model the choice of expert 0 is as good as any, but not as the only one of a layer.
    """
    if not len(layers):
        return layers
    place = {layer: i for i, layer in enumerate(trace.axis_layers().tolist())}
    axis = np.asarray([place[layer] for layer in layers.tolist()], dtype=np.int64)
    index = np.flatnonzero(rows)
    captured = np.zeros(len(layers), dtype=bool)
    for part in np.array_split(index, max(1, len(index) // _ROWS_PER_BLOCK)):
        ids = gather(trace.rows.expert_ids, part, axis)
        captured |= (is_captured(ids, trace.model) & ids.any(axis=-1)).any(axis=0)
    return layers[~captured]
