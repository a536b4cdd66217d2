"""Causes of layers that are zero in every row: a router, or a pipeline stage, that was not captured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.diagnose.facts import EXPORTS_TOP_K, RunFacts, run_facts
from moeinspect.analysis.diagnose.nextstep import diagnosis
from moeinspect.analysis.diagnose.words import of_all
from moeinspect.analysis.findings import Diagnosis, Finding
from moeinspect.analysis.requests import is_imported
from moeinspect.analysis.rules.grouping import layers_text
from moeinspect.trace.schema import Trace


def diagnose_zero_layers(
    trace: Trace, findings: Sequence[Finding], cells: NDArray[np.bool_]
) -> list[Diagnosis]:
    """Reads causes off where the zero layers stand, and off the run's pipeline stages.

    `findings` are of the rule `zero-layers`, `cells` [R, L] are those of the trace's
    own axis that ask for a cause.
    """
    layers = tuple(sorted({layer for finding in findings for layer in finding.layers}))
    if not layers:
        return []
    requests = len({(f.request, f.evidence.get("sample", 0)) for f in findings})
    whole = _of_layers(trace, layers, requests)
    hashed = run_facts(trace).hash_layers or ()
    others = tuple(layer for layer in layers if layer not in hashed)
    groups = {layers: whole}
    if hashed and whole.cause == "unknown" and 0 < len(others) == len(layers) - len(hashed):
        groups = {part: _of_layers(trace, part, requests) for part in (hashed, others)}
    return [
        replace(found, explains=int(cells[:, np.isin(trace.axis_layers(), part)].sum()))
        for part, found in groups.items()
    ]


def _of_layers(trace: Trace, layers: tuple[int, ...], requests: int) -> Diagnosis:
    because = [
        f"MoE {layers_text(layers)} {'is' if len(layers) == 1 else 'are'} zero in every row of "
        f"{of_all(requests, len(trace.requests), 'request')}, the other layers are not"
    ]
    facts = run_facts(trace)
    if facts.hash_layers and layers == facts.hash_layers:
        because.append("they are exactly the hash-routed layers of the model, whose router is one of its own")
        return diagnosis("hash-layer-uncaptured", 0.95, because, trace)
    if facts.hash_layers and set(layers) == set(trace.model.moe_layers) - set(facts.hash_layers):
        return _all_but_hashed(trace, layers, facts, because)
    if not _is_one_block(trace, layers):
        if (how := _misread(trace, layers)) and is_imported(trace):
            because.append(how)
            return diagnosis("layer-shift", 0.85, because, trace)
        return diagnosis("unknown", 0.3, because, trace)
    if facts.pp_size is not None and facts.pp_size > 1 and (stages := _whole_stages(trace, layers, facts)):
        because.append(
            f"the run had {facts.pp_size} pipeline stages, and these are all MoE layers of {stages}: "
            "what these captured was not put together with the rest"
        )
        return diagnosis("pp-stage", 0.95, because, trace)
    return _by_place(trace, layers, facts, because)


def first_stage_has_no_moe(trace: Trace, facts: RunFacts) -> bool:
    """Whether all MoE layers of a pipelined run are in later stages: then those lost leave nothing."""
    stages = _stages(trace, facts)
    return len(stages) > 1 and not stages[0]


def _all_but_hashed(trace: Trace, layers: tuple[int, ...], facts: RunFacts, because: list[str]) -> Diagnosis:
    """A fused kernel keeps what it chose; hash-routed layers choose outside of it."""
    because.append("all layers but the hash-routed ones are zero, which look their experts up in a table")
    causes = []
    if facts.backend in EXPORTS_TOP_K:
        because.append(f"the MoE backend was {facts.backend}, which exports its top-k")
    else:
        because.append("a fused kernel that does not export its top-k leaves nothing of the others")
        causes.append("kernel-uncaptured")
    if facts.pp_size != 1 and (facts.pp_size is None or _whole_stages(trace, layers, facts)):
        because.append("they may be the layers of other pipeline stages as well")
        causes.append("pp-stage")
    confidence = 0.9 if len(causes) == 1 and facts.backend is not None else 0.6 if causes else 0.3
    return diagnosis("|".join(causes) or "unknown", confidence, because, trace)


def _by_place(trace: Trace, layers: tuple[int, ...], facts: RunFacts, because: list[str]) -> Diagnosis:
    causes = []
    is_first = layers[0] == min(trace.model.moe_layers)
    if is_first and facts.hash_layers is None:
        because.append("they are the first MoE layers, which is where models have hash-routed ones")
        causes.append("hash-layer-uncaptured")
    elif not is_first:
        because.append("they are one contiguous block, as the layers of another pipeline stage are")
    seams_known = facts.pp_size == 1 or (facts.pp_size is not None and not is_imported(trace))
    if facts.pp_size == 1:
        because.append("the run had one pipeline stage")
    elif seams_known:
        because.append("they are not the layers of whole pipeline stages")
    if not seams_known:
        causes.append("pp-stage")
    if is_imported(trace):
        causes.append("layer-shift")
        if how := _misread(trace, layers):
            because.append(how)
    confidence = 0.9 if causes == ["hash-layer-uncaptured"] else 0.6 if causes else 0.3
    return diagnosis("|".join(sorted(causes)) or "unknown", confidence, because, trace)


def _misread(trace: Trace, layers: tuple[int, ...]) -> str:
    """Whether exactly these are the zeros that a reader of the other layer axis finds, in words."""
    moe = sorted(trace.model.moe_layers)
    dense = set(range(trace.model.num_hidden_layers)) - set(moe)
    if layers == tuple(layer for number, layer in enumerate(moe) if number in dense):
        return (
            "they are the MoE layers whose number among these is a dense layer's index: read by that number"
        )
    if layers == tuple(layer for layer in moe if layer >= len(moe)):
        return "they are the layers whose index lies beyond the number of MoE layers: read by that index"
    return ""


def _is_one_block(trace: Trace, layers: tuple[int, ...]) -> bool:
    moe = sorted(trace.model.moe_layers)
    places = [moe.index(layer) for layer in layers if layer in moe]
    return bool(places) and places == list(range(places[0], places[-1] + 1))


def _whole_stages(trace: Trace, layers: tuple[int, ...], facts: RunFacts) -> str:
    """The pipeline stages whose MoE layers these are, in words; empty if they do not end at seams."""
    stages = [stage for stage in _stages(trace, facts) if stage]
    whole = [stage for stage in stages if set(stage) <= set(layers)]
    if sorted(layer for stage in whole for layer in stage) != list(layers):
        return ""
    if whole == stages[1:]:
        return "the stages after the first"
    return "the stages before the last" if whole == stages[:-1] else "whole stages"


def _stages(trace: Trace, facts: RunFacts) -> list[tuple[int, ...]]:
    """MoE layers of each pipeline stage, if decoder layers are spread evenly, the longer stages first."""
    moe = set(trace.model.moe_layers)
    parts = np.array_split(np.arange(trace.model.num_hidden_layers), max(1, facts.pp_size or 1))
    return [tuple(layer for layer in part.tolist() if layer in moe) for part in parts]
