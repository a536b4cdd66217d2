"""Ids that lost their upper bits on the way: `uint8-wrap`."""

from __future__ import annotations

import numpy as np

from moeinspect.trace.schema import Trace, Validity
from moeinspect.trace.transport.fault import NoEffectError, TransportFault
from moeinspect.trace.transport.records import records_of, trace_of


def wrapped_to_uint8(trace: Trace) -> Trace:
    """Every id of a row that was captured goes through uint8 and keeps its lowest eight bits.

    verl recorded the router's ids [T, L, K] by `.to(torch.uint8)` (verl#7407), prime-rl packed them that way
    (prime-rl#3051). Weights, margins and the other columns are what they were.

    Raises:
        NoEffectError: no id is above 255.
    """
    captured = np.isin(trace.rows.validity, (Validity.REAL, Validity.FILLER))
    is_moe = np.isin(trace.axis_layers(), trace.model.moe_layers)
    ids = trace.rows.expert_ids[captured][:, is_moe]
    if not (ids > np.iinfo(np.uint8).max).any():
        raise NoEffectError(
            UINT8_WRAP.name,
            f"none of the {trace.model.num_experts} experts that were chosen is above 255",
            "take a trace of a model with more than 256 experts",
        )
    records = records_of(trace)
    for record in records:
        record.expert_ids = record.expert_ids.astype(np.uint8).astype(np.int64)
    return trace_of(trace, records)


UINT8_WRAP = TransportFault(
    "uint8-wrap", "verl#7407, prime-rl#3051", lambda trace, rng: wrapped_to_uint8(trace)
)
