"""Makes of a local trace what an importer would make of an engine's answers: less is known of every row.

No step, worker, slot or kind of a row, no margins, no events, all decoder layers on the layer axis; of the
run's switches those that the engine's own arguments spell, or none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from moeinspect.trace.schema import InvalidCells, Origin, Requests, Trace

_BACKENDS = {"torch": "triton", "bypass": "flashinfer_trtllm"}
"""The engines' backends that do what the local ones do: export the top-k, or compute it inside."""

_OF_ANSWERS = ("cached_tokens", "num_retractions", "dp_rank", "weight_version", "num_weight_versions")
"""What SGLang's `meta_info` tells of a request."""


def foreign(trace: Trace, engine: str, *, switches: bool) -> Trace:
    """The trace as answers of `engine` (sglang or vllm), with or without its arguments and `meta_info`."""
    trace = _on_all_layers(trace)
    n, rows, requests = len(trace.rows), trace.rows, trace.requests
    tells = switches and engine == "sglang"
    rows = replace(
        rows,
        origin=np.full(n, Origin.IMPORTED, np.uint8),
        worker=np.zeros(n, np.uint16),
        step=np.zeros(n, np.int32),
        slot=np.full(n, -1, np.int32),
        weight_version=rows.weight_version if tells else np.zeros_like(rows.weight_version),
        weights=None,
        margin=None,
    )
    untold = {"num_drafted", "num_accepted"} | (set() if tells else set(_OF_ANSWERS))
    columns = {name: np.zeros_like(getattr(requests, name)) for name in untold}
    if not tells:
        columns["num_weight_versions"] += 1
    config = trace.run.run_config
    arguments = {"sglang": sglang_arguments, "vllm": vllm_arguments}[engine](config) if switches else {}
    run = replace(
        trace.run,
        engine=engine,
        producer="importer",
        machine_key="",
        deterministic=False,
        run_config=arguments,
        injected_faults=(),
        baseline_of="",
        slot_order="router" if tells else "unknown",
    )
    return replace(
        trace,
        run=run,
        rows=rows,
        requests=replace(requests, **columns),
        worker_names=("imported",),
        events=None,
        weight_versions=trace.weight_versions if tells else ("default",),
    )


def sglang_arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    """The switches of a local run as SGLang's server arguments."""
    draft = config.get("draft")
    arguments = {
        "enable_return_routed_experts": True,
        "chunked_prefill_size": config["chunked_prefill_size"],
        "disable_overlap_schedule": not config["overlap"],
        "disable_cuda_graph": not config["graph"],
        "disable_radix_cache": not config["prefix_cache"],
        "enable_hierarchical_cache": bool(config["host_kv_slots"]),
        "disaggregation_mode": "decode" if config["disagg"] else "null",
        "dp_size": config["dp_size"],
        "tp_size": config["tp_size"],
        "pp_size": config["pp_size"],
        "ep_num_redundant_experts": config["redundant_experts"],
        "disable_shared_experts_fusion": not config["fused_shared_expert"],
        "moe_runner_backend": _BACKENDS.get(config["backend"], config["backend"]),
        "speculative_algorithm": None,
    }
    if draft == "ngram":
        arguments["speculative_algorithm"] = "NGRAM"
    elif draft is not None:
        arguments |= {
            "speculative_algorithm": "STANDALONE",
            "speculative_eagle_topk": config["draft_topk"],
            "speculative_num_draft_tokens": config["num_draft_tokens"],
        }
    return arguments


def vllm_arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    """The switches of a local run as vLLM's engine arguments."""
    draft = config.get("draft")
    arguments: dict[str, Any] = {
        "enable_return_routed_experts": True,
        "max_num_batched_tokens": config["chunked_prefill_size"],
        "async_scheduling": config["overlap"],
        "enforce_eager": not config["graph"],
        "enable_prefix_caching": config["prefix_cache"],
        "data_parallel_size": config["dp_size"],
        "tensor_parallel_size": config["tp_size"],
        "pipeline_parallel_size": config["pp_size"],
        "enable_eplb": config["redundant_experts"] > 0,
        "eplb_config": {"num_redundant_experts": config["redundant_experts"]},
        "moe_backend": _BACKENDS.get(config["backend"], config["backend"]),
    }
    if config["disagg"]:
        arguments["kv_transfer_config"] = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
    elif config["host_kv_slots"]:
        arguments["kv_offloading_size"] = 4.0
    if draft is not None:
        method = "ngram" if draft == "ngram" else "draft_model"
        speculation = {"method": method, "num_speculative_tokens": config["num_draft_tokens"]}
        if config["draft_topk"] > 1:
            speculation["speculative_token_tree"] = "[(0,), (1,)]"
        arguments["speculative_config"] = speculation
    return arguments


def chosen(trace: Trace, order: Sequence[int]) -> Trace:
    """The requests of these numbers, in this order, with their rows and tokens."""
    row = np.concatenate([np.arange(len(trace.rows))[trace.row_range(i)] for i in order])
    columns = {field.name: getattr(trace.requests, field.name)[list(order)] for field in fields(Requests)}
    num_tokens = columns["prompt_len"].astype(np.int64) + columns["output_len"]
    columns["token_start"] = np.cumsum(num_tokens) - num_tokens
    columns["row_start"] = np.cumsum(columns["num_rows"], dtype=np.int64) - columns["num_rows"]
    place = np.full(len(trace.rows), -1, np.int64)
    place[row] = np.arange(len(row))
    invalid = trace.rows.invalid_cells
    kept = place[invalid.row] >= 0
    rows = {
        field.name: values[row]
        for field in fields(trace.rows)
        if isinstance(values := getattr(trace.rows, field.name), np.ndarray)
    }
    rows["invalid_cells"] = InvalidCells(
        row=place[invalid.row[kept]],
        layer=invalid.layer[kept],
        slot=invalid.slot[kept],
        value=invalid.value[kept],
    )
    return replace(
        trace,
        requests=replace(trace.requests, **columns),
        tokens=np.concatenate([trace.tokens_of(i) for i in order]),
        rows=replace(trace.rows, **rows),
    )


def _on_all_layers(trace: Trace) -> Trace:
    """The ids on an axis of all decoder layers; a dense one, of sentinels, comes first if there is none."""
    model = trace.model
    if model.layer_axis == "all":
        return trace
    stages = int(trace.run.run_config.get("pp_size", 1))
    added = int(len(model.moe_layers) == model.num_hidden_layers and stages == 1)
    moe_layers = tuple(layer + added for layer in model.moe_layers)
    wider = replace(
        model,
        layer_axis="all",
        num_hidden_layers=model.num_hidden_layers + added,
        moe_layers=moe_layers,
        capture_exempt_layers=tuple(layer + added for layer in model.capture_exempt_layers),
    )
    ids = trace.rows.expert_ids
    full = np.full((len(ids), wider.num_hidden_layers, ids.shape[2]), np.iinfo(ids.dtype).max, ids.dtype)
    full[:, list(moe_layers)] = ids
    invalid = trace.rows.invalid_cells
    rows = replace(
        trace.rows, expert_ids=full, invalid_cells=replace(invalid, layer=invalid.layer + np.int32(added))
    )
    return replace(trace, model=wider, rows=rows)
