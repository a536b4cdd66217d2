"""Layers that get the rows of another one: `mtp-alias`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moeinspect.trace.schema import RequestRecord, Trace
from moeinspect.trace.transport.fault import NoEffectError, TransportFault
from moeinspect.trace.transport.records import records_of, trace_of


def aliased_prediction_layers(trace: Trace, *, depth: int = 1, added: bool = False) -> Trace:
    """The last `depth` MoE layers are of multi-token prediction, and get the rows of the first ones.

    Megatron numbers prediction layers from 0 again, so a trainer that asks for the rows of "layer 0" gets
    the decoder's for them, too (NeMo-RL#3903, slime#1556). `added`: the engine knew nothing of these layers,
    and the trainer's trace has `depth` layers more than the engine's.

    Raises:
        NoEffectError: there are fewer than 2 * `depth` MoE layers.
    """
    model = trace.model
    moe = np.flatnonzero(np.isin(trace.axis_layers(), model.moe_layers))
    if len(moe) < (1 if added else 2) * depth:
        raise NoEffectError(MTP_ALIAS.name, f"of {len(moe)} MoE layers none could be a prediction layer's")
    records = records_of(trace)
    if not added:
        for record in records:
            for part in (record.expert_ids, record.weights, record.margin):
                if part is not None:
                    part[:, moe[-depth:]] = part[:, moe[:depth]]
        return trace_of(trace, records)
    more = tuple(range(model.num_hidden_layers, model.num_hidden_layers + depth))
    longer = replace(
        model,
        num_hidden_layers=model.num_hidden_layers + depth,
        moe_layers=(*model.moe_layers, *more),
    )
    axis = np.concatenate([np.arange(trace.rows.expert_ids.shape[1]), moe[:depth]])
    return trace_of(trace, [_on_axis(record, axis) for record in records], longer)


def _on_axis(record: RequestRecord, axis: np.ndarray[tuple[int], np.dtype[np.int64]]) -> RequestRecord:
    weights, margin = record.weights, record.margin
    return replace(
        record,
        expert_ids=record.expert_ids[:, axis],
        weights=None if weights is None else weights[:, axis],
        margin=None if margin is None else margin[:, axis],
    )


MTP_ALIAS = TransportFault(
    "mtp-alias", "NeMo-RL#3903, slime#1556", lambda trace, rng: aliased_prediction_layers(trace)
)
