"""Rows read at another place of their axis: `layer-shift` and `row-shift`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from moeinspect.trace.schema import ModelFacts, RequestRecord, Trace
from moeinspect.trace.transport.fault import Apply, NoEffectError, fault_of_variants
from moeinspect.trace.transport.records import records_of, rows_taken, trace_of

Ends = Literal["zero", "repeat", "drop"]
"""What stands where the shift leaves nothing: zeros (a zero-filled buffer), the last one that was there
(a clamped index), or no row or layer at all."""

ENDS: tuple[Ends, ...] = get_args(Ends)

Part = Literal["all", "prompt", "tail"]
"""Which rows of a request: all, the prompt's, or those behind a place in the middle where one was lost."""

_LAYER_SHIFT, _ROW_SHIFT = "layer-shift", "row-shift"


def layers_counted_as_moe(trace: Trace) -> Trace:
    """The payload has all decoder layers, dense ones as zeros, and the consumer counts MoE layers only.

    verl read a payload [T, L, K] of all layers by the number of the MoE layer (verl#5037, verl#5452).

    Raises:
        NoEffectError: no dense layer stands before a MoE layer.
    """
    return _with_source(trace, np.arange(len(trace.model.moe_layers)), of_all_layers=True, ends="zero")


def layers_counted_as_all(trace: Trace, ends: Ends) -> Trace:
    """The payload has MoE layers only, and the consumer counts all decoder layers.

    Raises:
        NoEffectError: no dense layer stands before a MoE layer.
    """
    return _with_source(trace, _moe_layers(trace), of_all_layers=False, ends=ends)


def layers_offset(trace: Trace, offset: int, ends: Ends) -> Trace:
    """Each MoE layer reads the one that is `offset` MoE layers higher: a stage's first layer miscounted.

    Raises:
        NoEffectError: the model has no more MoE layers than that.
    """
    return _with_source(
        trace, np.arange(len(trace.model.moe_layers)) + offset, of_all_layers=False, ends=ends
    )


def rows_shifted(
    trace: Trace,
    lag: int,
    ends: Ends,
    part: Part = "all",
    share: float = 1.0,
    rng: np.random.Generator | None = None,
) -> Trace:
    """Each row is the one `lag` rows later (SkyRL#1908: rows and tokens padded on different sides;
    vllm#39568: rows lost in the middle of a request).

    `share` is the share of requests that are shifted, drawn by `rng`, one at least; a request as short as
    the shift is left alone.

    Raises:
        NoEffectError: every request is that short.
    """
    rng = rng or np.random.default_rng(0)
    records = records_of(trace)
    spans = [_span(record, lag, part, rng) for record in records]
    able = [number for number, (start, stop) in enumerate(spans) if stop - start > abs(lag) + 1]
    if not able:
        raise NoEffectError(_ROW_SHIFT, f"no request has more than {abs(lag) + 1} rows to shift")
    wanted = max(1, round(share * len(able)))
    for number in sorted(rng.choice(able, size=wanted, replace=False).tolist()):
        records[number] = _shifted(records[number], spans[number], lag, ends)
    return trace_of(trace, records)


def _span(record: RequestRecord, lag: int, part: Part, rng: np.random.Generator) -> tuple[int, int]:
    num_rows = len(record.expert_ids)
    if part == "prompt":
        return 0, max(0, len(record.prompt_ids) - record.start_pos)
    if part == "tail" and num_rows > 2 * abs(lag) + 4:
        return int(rng.integers(2, num_rows - abs(lag) - 2)), num_rows
    return 0, num_rows


def _shifted(record: RequestRecord, span: tuple[int, int], lag: int, ends: Ends) -> RequestRecord:
    start, stop = span
    source = np.arange(len(record.expert_ids))
    moved = source[start:stop] + lag
    outside = (moved < start) | (moved >= stop)
    source[start:stop] = np.clip(moved, start, stop - 1)
    empty = start + np.flatnonzero(outside)
    taken = rows_taken(record, source)
    if ends == "drop" and lag > 0 and stop == len(source):
        return rows_taken(record, np.delete(source, empty))
    if ends == "drop" and lag < 0 and start == 0:
        return replace(rows_taken(record, np.delete(source, empty)), start_pos=record.start_pos + len(empty))
    if ends == "zero" or ends == "drop":
        taken.expert_ids[empty] = 0
        for values in (taken.weights, taken.margin):
            if values is not None:
                values[empty] = 0
    return taken


def _moe_layers(trace: Trace) -> NDArray[np.int64]:
    return np.asarray(trace.model.moe_layers, dtype=np.int64)


def _with_source(trace: Trace, source: NDArray[np.int64], *, of_all_layers: bool, ends: Ends) -> Trace:
    """MoE layer m reads layer `source[m]` of a payload that has all decoder layers, or MoE layers only."""
    moe = _moe_layers(trace)
    ordinal = np.full(trace.model.num_hidden_layers, -1, dtype=np.int64)
    ordinal[moe] = np.arange(len(moe))
    if of_all_layers:
        place = ordinal[source]
    else:
        inside = (source >= 0) & (source < len(moe))
        place = np.where(inside, source, np.clip(source, 0, len(moe) - 1) if ends == "repeat" else -1)
    if (place == np.arange(len(moe))).all() or (place < 0).all():
        raise NoEffectError(
            _LAYER_SHIFT,
            "no MoE layer would read another one's rows",
            "take a model whose first layers are dense",
        )
    kept = place >= 0 if ends == "drop" else np.ones(len(moe), dtype=bool)
    facts = trace.model if kept.all() else _without_layers(trace.model, moe[kept])
    axis = moe if trace.model.layer_axis == "all" else np.arange(len(moe))
    records = [_read_at(record, axis, place, facts) for record in records_of(trace)]
    return trace_of(trace, records, facts)


def _read_at(
    record: RequestRecord, axis: NDArray[np.int64], place: NDArray[np.int64], facts: ModelFacts
) -> RequestRecord:
    def read(values: NDArray[Any], fill: int) -> NDArray[Any]:
        got = values[:, axis[np.maximum(place, 0)]]
        got[:, place < 0] = fill
        if len(facts.moe_layers) < len(place):
            got = got[:, place >= 0]
        if facts.layer_axis == "moe":
            return np.asarray(got)
        full = np.full((len(values), facts.num_hidden_layers, *values.shape[2:]), fill, dtype=values.dtype)
        full[:, list(facts.moe_layers)] = got
        return full

    return replace(
        record,
        expert_ids=read(record.expert_ids, 0),
        weights=None if record.weights is None else read(record.weights, 0),
        margin=None if record.margin is None else read(record.margin, 0),
    )


def _without_layers(model: ModelFacts, kept: NDArray[np.int64]) -> ModelFacts:
    """The model as a payload without the lost layers tells it."""
    return replace(model, moe_layers=tuple(kept.tolist()))


def _offset(trace: Trace, rng: np.random.Generator, *, sign: int, ends: Ends) -> Trace:
    dense = int(min(trace.model.moe_layers, default=0)) or 1
    return layers_offset(trace, sign * dense, ends)


def _counted_as_all(ends: Ends) -> Apply:
    return lambda trace, rng: layers_counted_as_all(trace, ends)


LAYER_SHIFT = fault_of_variants(
    _LAYER_SHIFT,
    "verl#5037, verl#5452",
    {
        "all-as-moe": lambda trace, rng: layers_counted_as_moe(trace),
        **{f"moe-as-all-{ends}": _counted_as_all(ends) for ends in ENDS},
        **{
            f"offset-{word}-{ends}": partial(_offset, sign=sign, ends=ends)
            for word, sign in (("up", 1), ("down", -1))
            for ends in ENDS
        },
    },
)


def _rows(lag: int, ends: Ends, part: Part = "all", share: float = 1.0) -> Apply:
    return lambda trace, rng: rows_shifted(trace, lag, ends, part, share, rng)


ROW_SHIFT = fault_of_variants(
    _ROW_SHIFT,
    "SkyRL#1908, vllm#39568",
    {
        **{f"{lag:+d}-{ends}": _rows(lag, ends) for lag in (-2, -1, 1, 2) for ends in ENDS},
        "+5-zero": _rows(5, "zero"),
        "-7-repeat": _rows(-7, "repeat"),
        "+1-zero-some": _rows(1, "zero", share=0.4),
        "-1-repeat-some": _rows(-1, "repeat", share=0.4),
        "+1-repeat-prompt": _rows(1, "repeat", "prompt"),
        "-1-zero-prompt": _rows(-1, "zero", "prompt"),
        "+1-zero-lost": _rows(1, "zero", "tail"),
        "+1-repeat-lost-some": _rows(1, "repeat", "tail", 0.5),
    },
)
