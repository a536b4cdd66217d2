"""What a run says about itself: the switches that a cause needs."""

from __future__ import annotations

from dataclasses import dataclass

from moeinspect.analysis.diagnose.arguments import Arguments
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
    ngram: bool
    """The draft is n-gram look-up, as far as is told."""
    graph: bool | None
    backend: str | None
    prefix_cache: bool | None
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
    told = Arguments(trace)
    return RunFacts(
        overlap=told.overlap,
        disagg=told.disagg,
        draft=told.draft,
        draft_tree=told.draft_tree,
        draft_layers=told.draft_layers,
        ngram=told.ngram,
        graph=told.graph,
        backend=told.backend,
        prefix_cache=told.prefix_cache,
        host_tier=told.host_tier,
        mixed_opt_in=_mixed_opt_in(trace),
        dp_size=told.count("dp_size", "data_parallel_size", "dp", default=1),
        tp_size=told.count("tp_size", "tensor_parallel_size", "tp", default=1),
        pp_size=told.count("pp_size", "pipeline_parallel_size", "pp", default=1),
        redundant_experts=told.redundant_experts,
        fused_shared_expert=told.fused_shared_expert,
        hash_layers=_hash_layers(trace),
    )


def knows_workers(trace: Trace) -> bool:
    """Whether `/rows/worker` and `/rows/step` say anything: an importer cannot know them."""
    return len(trace.rows) > 0 and bool((trace.rows.origin != Origin.IMPORTED).all())


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
