"""What a run says about itself: the switches that a cause needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moeinspect.analysis.requests import LOCAL, is_imported
from moeinspect.trace.schema import Origin, Trace

EXPORTS_TOP_K = {"torch", "triton"}
"""Backends whose top-k is a step of its own."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Switches of a run; None: the trace does not tell."""

    overlap: bool | None
    disagg: bool | None
    draft: bool | None
    draft_tree: bool | None
    draft_layers: bool | None
    """The draft has MoE layers: n-gram drafts have none."""
    graph: bool | None
    backend: str | None
    host_tier: bool | None
    mixed_opt_in: bool | None
    """Some requests asked for their routed experts and others did not."""
    dp_size: int | None
    tp_size: int | None
    pp_size: int | None
    redundant_experts: int | None
    fused_shared_expert: bool | None
    hash_layers: tuple[int, ...] | None
    """Absolute indices of the hash-routed layers."""


def run_facts(trace: Trace) -> RunFacts:
    """What `run_config` says, in the local runtime's words, SGLang's or vLLM's."""
    config = trace.run.run_config
    overlap = _flag(config, "overlap")
    if overlap is None and "disable_overlap_schedule" in config:
        overlap = not config["disable_overlap_schedule"]
    disagg = _flag(config, "disagg")
    if disagg is None and "disaggregation_mode" in config:
        disagg = config["disaggregation_mode"] not in (None, "null", "")
    graph = _flag(config, "graph")
    if graph is None and "disable_cuda_graph" in config:
        graph = not config["disable_cuda_graph"]
    width = config.get("draft_topk", config.get("speculative_eagle_topk"))
    draft = _draft(config)
    return RunFacts(
        overlap=overlap,
        disagg=disagg,
        draft=draft,
        draft_tree=None if width is None else int(width) > 1,
        draft_layers=draft and not _is_ngram(config),
        graph=graph,
        backend=config.get("backend", config.get("moe_runner_backend")),
        host_tier=_host_tier(config),
        mixed_opt_in=_mixed_opt_in(trace),
        dp_size=_count(config, "dp_size", "data_parallel_size"),
        tp_size=_count(config, "tp_size", "tensor_parallel_size"),
        pp_size=_count(config, "pp_size", "pipeline_parallel_size"),
        redundant_experts=_count(
            config, "redundant_experts", "ep_num_redundant_experts", "num_redundant_experts"
        ),
        fused_shared_expert=_fused_shared_expert(config),
        hash_layers=_hash_layers(trace),
    )


def knows_workers(trace: Trace) -> bool:
    """Whether `/rows/worker` and `/rows/step` say anything: an importer cannot know them."""
    return len(trace.rows) > 0 and bool((trace.rows.origin != Origin.IMPORTED).all())


def _draft(config: Mapping[str, Any]) -> bool | None:
    if "draft" in config:
        return config["draft"] not in (None, "", "none")
    return bool(config["speculative_algorithm"]) if "speculative_algorithm" in config else None


def _is_ngram(config: Mapping[str, Any]) -> bool:
    return "ngram" in str(config.get("draft", config.get("speculative_algorithm"))).lower()


def _mixed_opt_in(trace: Trace) -> bool | None:
    """The local runtime lists the requests that did not ask, and nothing if all did."""
    if trace.run.engine != LOCAL and "not_opted_in" not in trace.run.run_config:
        return None
    return bool(trace.run.run_config.get("not_opted_in"))


def _hash_layers(trace: Trace) -> tuple[int, ...] | None:
    """The local runtime lists them, and nothing if the model has none."""
    listed = trace.run.run_config.get("hash_layers", None if is_imported(trace) else ())
    if not isinstance(listed, list | tuple) or not all(isinstance(layer, int) for layer in listed):
        return None
    return tuple(sorted(listed))


def _host_tier(config: Mapping[str, Any]) -> bool | None:
    if "host_kv_slots" in config:
        return bool(config["host_kv_slots"])
    return _flag(config, "enable_hierarchical_cache")


def _fused_shared_expert(config: Mapping[str, Any]) -> bool | None:
    if "disable_shared_experts_fusion" in config:
        return not config["disable_shared_experts_fusion"]
    return _flag(config, "fused_shared_expert")


def _count(config: Mapping[str, Any], *names: str) -> int | None:
    value = next((config[name] for name in names if name in config), None)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _flag(config: Mapping[str, Any], name: str) -> bool | None:
    value = config.get(name)
    return None if value is None else bool(value)
