"""What a diagnosis would have been surer with, and which the trace does not hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from moeinspect.analysis.diagnose.arguments import SGLANG, VLLM
from moeinspect.analysis.diagnose.facts import knows_workers, run_facts
from moeinspect.analysis.findings import Diagnosis, Finding
from moeinspect.trace.schema import Trace

RULE = "less-evidence"

SURE = 0.8
"""Confidence from which on a diagnosis with one name lacks nothing."""

ROWS = "rows"
"""Worker, step and origin of every row."""
SLOTS = "slots"
"""The KV slot of every row."""

NEEDS: dict[str, tuple[str, ...]] = {
    "skip-finalize-prefill": ("disagg", "overlap", ROWS),
    "no-merge": ("disagg", ROWS),
    "merge-misaligned": ("disagg",),
    "draft-capture": ("draft", "graph", "backend"),
    "draft-forward-end": ("draft", "draft_tree", "overlap", ROWS),
    "draft-recreates-capturer": ("draft",),
    "draft-optout-late": ("draft", "graph", ROWS),
    "bypass-drops-flag": ("draft", "backend"),
    "ungated-backend": ("draft", "backend"),
    "buffer-reuse": ("overlap", ROWS),
    "read-early": ("overlap", ROWS, SLOTS),
    "stale-slot": ("host_tier", ROWS, SLOTS),
    "verify-dropped": ("draft", "overlap", ROWS),
    "tree-rows": ("draft", "draft_tree", ROWS),
    "dp-slice": ("dp_size", ROWS),
    "tp-shard": ("tp_size", ROWS),
    "pp-stage": ("pp_size",),
    "padded-rows": ("graph", ROWS),
    "graph-static-rows": ("graph", ROWS),
    "batch-index-swap": ("mixed_opt_in",),
    "kernel-uncaptured": ("backend",),
    "init-order": ("backend",),
    "physical-ids": ("redundant_experts",),
    "shared-expert-column": ("fused_shared_expert",),
    "hash-layer-uncaptured": ("hash_layers",),
    "surplus-after-stop": ("draft",),
    "unknown": ("overlap", "disagg", "draft", "graph", ROWS, SLOTS),
}
"""What bears on each cause: switches by their names in `RunFacts`, ROWS and SLOTS. Other causes are read off
the rows alone."""

_SWITCHES = {
    "disagg": "disaggregation",
    "overlap": "overlap",
    "draft": "the draft",
    "draft_tree": "the width of the draft's tree",
    "graph": "graphs",
    "backend": "the MoE backend",
    "host_tier": "the prefix cache's host tier",
    "dp_size": "data-parallel ranks",
    "tp_size": "tensor-parallel ranks",
    "pp_size": "pipeline stages",
    "mixed_opt_in": "who asked for rows",
    "redundant_experts": "redundant experts",
    "fused_shared_expert": "the fused shared expert",
    "hash_layers": "hash-routed layers",
}
"""How a sentence names each switch, in the order in which they are listed."""


_OF_OTHERS = {
    "mixed_opt_in": "which requests asked for their rows, which the client knows",
    "hash_layers": "which layers are hash-routed, which the model's config.json says (--model)",
}
"""What no argument of a server tells, and who does."""

_ENGINE_WORDS: dict[str, dict[str, str]] = {
    SGLANG: {
        "disagg": "disaggregation_mode",
        "overlap": "disable_overlap_schedule",
        "draft": "speculative_algorithm",
        "draft_tree": "speculative_eagle_topk",
        "graph": "disable_cuda_graph",
        "backend": "moe_runner_backend",
        "host_tier": "enable_hierarchical_cache",
        "dp_size": "dp_size",
        "tp_size": "tp_size",
        "pp_size": "pp_size",
        "redundant_experts": "ep_num_redundant_experts",
        "fused_shared_expert": "disable_shared_experts_fusion",
    },
    VLLM: {
        "disagg": "kv_transfer_config",
        "overlap": "async_scheduling",
        "draft": "speculative_config",
        "draft_tree": "speculative_config",
        "graph": "enforce_eager",
        "backend": "moe_backend",
        "host_tier": "kv_offloading_size",
        "dp_size": "data_parallel_size",
        "tp_size": "tensor_parallel_size",
        "pp_size": "pipeline_parallel_size",
        "redundant_experts": "eplb_config",
    },
}
"""What the engines call the switches in their arguments; those of a request or of the model are not there."""

_PRINTED = {
    SGLANG: "which SGLang prints as server_args when it starts",
    VLLM: "which vLLM prints as non-default args when it starts",
}

_NEVER_TOLD = {VLLM: {"mixed_opt_in", "fused_shared_expert"}}
"""What an engine has no switch for: vLLM returns the rows of every request, or of none."""


def less_evidence(traces: Iterable[Trace], diagnoses: Sequence[Diagnosis]) -> tuple[Finding, ...]:
    """One note if a cause is unsure and `traces` lack what bears on it, with what it would take."""
    unsure = [one for one in diagnoses if "|" in one.cause or one.confidence < SURE or one.cause == "unknown"]
    names = list(dict.fromkeys(name for one in unsure for name in one.cause.split("|")))
    wanted = {need for name in names for need in NEEDS.get(name, ())}
    traces = tuple(traces)
    missing = wanted & {lack for trace in traces for lack in _lacks(trace)}
    if not missing:
        return ()
    told = [name for name in names if missing.intersection(NEEDS.get(name, ()))]
    remedies = "; ".join(_remedies(missing, _engine_of(traces)))
    text = f"the trace lacks what would make {_listed(told)} surer: {remedies}"
    evidence = {"causes": told, "missing": sorted(missing)}
    return (Finding(RULE, "note", text, 0, evidence=evidence),)


def _lacks(trace: Trace) -> set[str]:
    facts, engine = run_facts(trace), trace.run.engine.lower()
    lacks = {switch for switch in _SWITCHES if getattr(facts, switch) is None}
    lacks -= _NEVER_TOLD.get(engine, set())
    if trace.model.capture_exempt_layers:
        lacks.discard("hash_layers")
    if not knows_workers(trace):
        lacks.add(ROWS)
    if len(trace.rows) and not (trace.rows.slot >= 0).any():
        lacks.add(SLOTS)
    return lacks


def _engine_of(traces: Sequence[Trace]) -> str:
    """The one engine that answered, empty where there are several."""
    engines = {trace.run.engine.lower() for trace in traces}
    return engines.pop() if len(engines) == 1 else ""


def _remedies(missing: set[str], engine: str) -> list[str]:
    parts = []
    switches = [
        words for switch, words in _SWITCHES.items() if switch in missing and switch not in _OF_OTHERS
    ]
    if switches:
        spelled = _ENGINE_WORDS.get(engine, {})
        names = dict.fromkeys(
            spelled[switch] for switch in _SWITCHES if switch in missing and switch in spelled
        )
        told = f": {_listed(list(names))}, {_PRINTED[engine]}" if names else ""
        parts.append(
            f"the run's switches ({_listed(switches)}), which are in the server's arguments{told}; a trace "
            "keeps them in run_config"
        )
    parts += [words for switch, words in _OF_OTHERS.items() if switch in missing]
    rows = ["worker", "step", "origin"] * (ROWS in missing) + ["KV slot"] * (SLOTS in missing)
    if rows:
        parts.append(
            f"{_listed(rows)} of each row, which no engine's answer tells: `moeinspect capture` records "
            "them, else turn one switch at a time"
        )
    return parts


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
