"""One input as reports name it."""

from __future__ import annotations

from moeinspect.analysis.findings import InputSummary
from moeinspect.trace.schema import Trace


def summarize(trace: Trace) -> InputSummary:
    """Facts of a trace for the head of a report; `layers` counts its MoE layers."""
    return InputSummary(
        path=trace.path,
        engine=trace.run.engine,
        requests=len(trace.requests),
        rows=len(trace.rows),
        layers=len(trace.model.moe_layers),
        top_k=trace.model.top_k,
        num_experts=trace.model.num_experts,
        complete=trace.run.complete,
    )
