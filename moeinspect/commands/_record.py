"""From what the runtime hands out to what a trace is written from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import numpy as np

from moeinspect import __version__
from moeinspect.commands._request_groups import OPTIONS, request_groups
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.records import ROW_ORIGINS, Event, FinishedRequest, ModelSummary, PromptRequest
from moeinspect.trace.schema import (
    Events,
    FinishReason,
    Lane,
    ModelFacts,
    Origin,
    RequestRecord,
    RunInfo,
    Validity,
    enum_names,
)

_ORIGINS = np.asarray([enum_names(Origin)[name] for name in ROW_ORIGINS], dtype=np.uint8)


def run_info(
    asked: RunConfig,
    config: RunConfig,
    *,
    machine_key: str,
    requests: Iterable[PromptRequest],
    baseline_of: str,
    weight_fingerprints: Sequence[str] = (),
    hash_layers: Sequence[int] = (),
    prompts: str | None = None,
) -> RunInfo:
    """The attributes of the trace's root; `complete` is the writer's to set.

    `config` is what the run made of the options `asked` for.
    """
    return RunInfo(
        producer="moeinspect",
        producer_version=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        complete=False,
        engine="local",
        engine_version=__version__,
        machine_key=machine_key,
        deterministic=config.deterministic,
        run_config=recorded_config(asked, config, requests, weight_fingerprints, hash_layers, prompts),
        injected_faults=config.faults,
        baseline_of=baseline_of,
    )


def recorded_config(
    asked: RunConfig,
    config: RunConfig,
    requests: Iterable[PromptRequest],
    weight_fingerprints: Sequence[str] = (),
    hash_layers: Sequence[int] = (),
    prompts: str | None = None,
) -> dict[str, Any]:
    """Every resolved option, never the faults, and what the requests brought along.

    `prompts` is the file that the requests came from, if they came from one, `automatic` names options that
    the run chose a value for, since they were not given,
    `weight_fingerprints` tells the weights of `/weight_versions` apart, `request_seeds` holds the seeds by
    id of requests that name one, `not_opted_in` id and sample of those that do not ask for their routed
    experts, `request_options` all requests and what they ask for, `hash_layers` the model's hash-routed
    layers. What does not apply is left out.
    """
    requests = list(requests)
    options = asdict(config)
    del options["faults"]
    seeds = {request.id: request.seed for request in requests if request.seed is not None}
    not_opted_in = [list(request.key) for request in requests if not request.return_routed_experts]
    automatic = [
        name for name, value in options.items() if value is not None and getattr(asked, name) is None
    ]
    options |= {"prompts": prompts} if prompts else {}
    options |= {"weight_fingerprints": list(weight_fingerprints)} if config.weight_updates else {}
    options |= {"automatic": automatic} if automatic else {}
    options |= {"request_seeds": seeds} if seeds else {}
    options |= {"not_opted_in": not_opted_in} if not_opted_in else {}
    options |= {OPTIONS: request_groups(config, requests)} if requests else {}
    options |= {"hash_layers": list(hash_layers)} if hash_layers else {}
    return options


def weight_version_names(config: RunConfig) -> tuple[str, ...]:
    """Names of the weights in the order in which they served; `default` where they never changed."""
    if not config.weight_updates:
        return ("default",)
    return (config.model, *(model for _, model in config.weight_updates))


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
    """One ended request as the trace writer takes it.

    Rows of a request without routed experts are declared missing.
    """
    n = len(finished.expert_ids)
    has_rows = finished.has_routed_experts
    versions = finished.weight_version
    if versions is None:
        versions = np.zeros(n, dtype=np.uint16)
    return RequestRecord(
        id=finished.id,
        prompt_ids=finished.prompt_ids,
        output_ids=finished.output_ids,
        expert_ids=finished.expert_ids,
        validity=np.full(n, Validity.REAL if has_rows else Validity.MISSING, dtype=np.uint8),
        origin=_ORIGINS[finished.origin],
        worker=finished.worker,
        step=finished.step,
        slot=finished.slot,
        row_weight_version=versions,
        weights=finished.weights if has_rows else None,
        margin=finished.margin if has_rows else None,
        sample=finished.sample,
        finish_reason=FinishReason[finished.finish_reason.upper()],
        cached_tokens=finished.cached_tokens,
        num_retractions=finished.num_retractions,
        dp_rank=finished.dp_rank,
        num_drafted=finished.num_drafted,
        num_accepted=finished.num_accepted,
        weight_version=int(versions[0]) if n else 0,
        num_weight_versions=max(1, len(np.unique(versions))),
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
