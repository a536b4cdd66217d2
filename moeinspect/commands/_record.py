"""From what the runtime hands out to what a trace is written from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import numpy as np

from moeinspect import __version__
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.records import ROW_ORIGINS, Event, FinishedRequest, ModelSummary
from moeinspect.trace.schema import (
    Events,
    FinishReason,
    Lane,
    ModelFacts,
    Origin,
    RequestRecord,
    RunInfo,
    Validity,
)

_ORIGINS = np.asarray([Origin[name.upper()] for name in ROW_ORIGINS], dtype=np.uint8)


def run_info(
    config: RunConfig, *, machine_key: str, request_seeds: Mapping[str, int], baseline_of: str
) -> RunInfo:
    """The attributes of the trace's root; `complete` is the writer's to set."""
    return RunInfo(
        producer="moeinspect",
        producer_version=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        complete=False,
        engine="local",
        engine_version=__version__,
        machine_key=machine_key,
        deterministic=config.deterministic,
        run_config=recorded_config(config, request_seeds),
        injected_faults=config.faults,
        baseline_of=baseline_of,
    )


def recorded_config(config: RunConfig, request_seeds: Mapping[str, int]) -> dict[str, Any]:
    """Every resolved option and the seeds that requests brought along; never the faults."""
    options = asdict(config)
    del options["faults"]
    if request_seeds:
        options["request_seeds"] = dict(request_seeds)
    return options


def model_facts(summary: ModelSummary) -> ModelFacts:
    """The model as the trace names it: the runtime captures MoE layers only."""
    return ModelFacts(
        name=summary.name,
        architecture=summary.architecture,
        fingerprint=summary.fingerprint,
        num_hidden_layers=summary.num_hidden_layers,
        num_experts=summary.num_experts,
        top_k=summary.top_k,
        layer_axis="moe",
        moe_layers=summary.moe_layers,
    )


def request_record(finished: FinishedRequest) -> RequestRecord:
    """One ended request as the trace writer takes it."""
    n = len(finished.expert_ids)
    return RequestRecord(
        id=finished.id,
        prompt_ids=finished.prompt_ids,
        output_ids=finished.output_ids,
        expert_ids=finished.expert_ids,
        validity=np.full(n, Validity.REAL, dtype=np.uint8),
        origin=_ORIGINS[finished.origin],
        worker=finished.worker,
        step=finished.step,
        slot=finished.slot,
        row_weight_version=np.zeros(n, dtype=np.uint16),
        weights=finished.weights,
        margin=finished.margin,
        finish_reason=FinishReason[finished.finish_reason.upper()],
        num_drafted=finished.num_drafted,
        num_accepted=finished.num_accepted,
    )


def event_columns(events: Sequence[Event]) -> Events:
    """Intervals of work as columns."""
    return Events(
        worker=np.asarray([event.worker for event in events], dtype=np.uint16),
        pid=np.asarray([event.pid for event in events], dtype=np.int32),
        lane=np.asarray([Lane[event.lane.upper()] for event in events], dtype=np.uint8),
        step=np.asarray([event.step for event in events], dtype=np.int32),
        kind=np.asarray([event.kind for event in events], dtype=np.str_),
        start=np.asarray([event.start for event in events], dtype=np.float64),
        end=np.asarray([event.end for event in events], dtype=np.float64),
    )
