"""Causes that one trace's findings point at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from moeinspect.analysis.diagnose.aliases import diagnose_equal_layers
from moeinspect.analysis.diagnose.batch import diagnose_given_away
from moeinspect.analysis.diagnose.facts import run_facts
from moeinspect.analysis.diagnose.ids import diagnose_out_of_range, shared_column_of_sentinels
from moeinspect.analysis.diagnose.joins import diagnose_surplus
from moeinspect.analysis.diagnose.nextstep import MOST_NAMES, diagnosis
from moeinspect.analysis.diagnose.provenance import (
    cached_rows,
    computed_nowhere,
    prompt_rows,
    requests_of_findings,
    rows_of_findings,
)
from moeinspect.analysis.diagnose.ranks import diagnose_sliced_copies, rank_reasons
from moeinspect.analysis.diagnose.repeats import diagnose_repeated
from moeinspect.analysis.diagnose.words import counted, of_all
from moeinspect.analysis.diagnose.wrapped import diagnose_duplicates
from moeinspect.analysis.diagnose.zeros import ZERO_RULES, diagnose_zeros
from moeinspect.analysis.findings import Diagnosis, Finding
from moeinspect.analysis.rules.grouping import layers_text
from moeinspect.trace.schema import Trace, Validity

_ABOUT_ROWS = {"missing-request", "missing-rows", "surplus-rows"}
"""Rules that count rows, not cells."""

_NEARLY_ALL = 0.95


def diagnose_trace(
    trace: Trace, findings: tuple[Finding, ...], evidence: tuple[Finding, ...]
) -> list[Diagnosis]:
    """Causes of `findings`, errors and warnings that the one-trace rules gave for this trace.

    `evidence` are all of these, also those that have a cause already.
    """
    rules = {finding.rule for finding in findings}
    found: list[Diagnosis] = []
    if rules & ZERO_RULES:
        own = tuple(finding for finding in findings if finding.rule in ZERO_RULES)
        found += [_with_ranks(one, trace, own) for one in diagnose_zeros(trace, evidence)]
    explained: set[str] = set()
    if rules & _ABOUT_ROWS and (given := diagnose_given_away(trace, evidence)) is not None:
        found.append(given)
        explained = _ABOUT_ROWS  # rows under another request's name say nothing by their number
    for rule, explain in _EXPLAINED.items():
        own = tuple(finding for finding in findings if finding.rule == rule)
        if own and rule not in explained:
            cells = 0 if rule in _ABOUT_ROWS else sum(finding.count for finding in own)
            causes = explain(trace, own)
            several = (causes,) if isinstance(causes, Diagnosis) else causes
            found += [_with_ranks(replace(one, explains=cells), trace, own) for one in several]
    return found


def _with_ranks(found: Diagnosis, trace: Trace, findings: tuple[Finding, ...]) -> Diagnosis:
    reasons = rank_reasons(trace, requests_of_findings(trace, findings))
    return replace(found, because=found.because + reasons) if reasons else found


def _stale(trace: Trace, findings: tuple[Finding, ...]) -> Diagnosis:
    places = counted(sum(f.count for f in findings), "cell")
    because = [f"{places} equal rows of other requests, or of the slot's former owner"]
    facts, stale = run_facts(trace), rows_of_findings(trace, findings)
    nowhere = computed_nowhere(trace) & prompt_rows(trace)
    if facts.disagg and nowhere.any():
        because.append(
            "the run was disaggregated, and the worker that answered says that it never computed the prompt"
        )
        return diagnosis("no-merge", 0.9, because, trace)
    if cached_rows(trace)[stale].mean() >= (0.5 if facts.host_tier else 0.9):
        because.append("they are rows of cached prefixes: KV was moved there without its rows")
        return diagnosis("stale-slot", 0.85 if facts.host_tier else 0.8, because, trace)
    if (sliced := diagnose_sliced_copies(trace, findings, stale)) is not None:
        return replace(sliced, because=(*because, *sliced.because))
    if all(f.rows and f.rows[0] == 0 and _covers_request(trace, f) for f in findings):
        because.append("whole requests carry another request's rows")
        return diagnosis("batch-index-swap", 0.8 if facts.mixed_opt_in else 0.6, because, trace)
    return _stale_by_switches(trace, findings, because)


def _stale_by_switches(trace: Trace, findings: tuple[Finding, ...], because: list[str]) -> Diagnosis:
    """What the run's switches leave possible."""
    facts = run_facts(trace)
    moved = bool(trace.requests.cached_tokens.any() or trace.requests.num_retractions.any())
    causes = []
    if facts.overlap is not False:
        causes += ["buffer-reuse", "read-early"]
        if facts.draft is not False and all(f.region == "output" for f in findings):
            told = ", in a run with a draft" if facts.draft else ""
            because.append(f"only output rows are stale{told}")
            causes.append("verify-dropped")
    if facts.disagg is not False and all(f.region == "prompt" for f in findings):
        because.append("only prompt rows are stale: their KV may have come from another worker")
        causes.append("no-merge")
    if len(causes) < MOST_NAMES and (facts.disagg is not False or moved):
        causes.append("stale-slot")
    if not causes:
        because.append("no switch of the run is known to cause this")
    return diagnosis("|".join(sorted(causes)) or "unknown", 0.5 if len(causes) < 3 else 0.4, because, trace)


def _covers_request(trace: Trace, finding: Finding) -> bool:
    if finding.rows is None:
        return False
    named = np.flatnonzero(trace.requests.id == finding.request)
    return any(int(trace.requests.num_rows[i]) == finding.rows[1] for i in named)


def _filler(trace: Trace, findings: tuple[Finding, ...]) -> Diagnosis:
    because = [f"{counted(len(findings), 'run')} of rows follow a filler pattern"]
    outputs = [trace.tokens_of(i)[int(trace.requests.prompt_len[i]) :] for i in range(len(trace.requests))]
    if outputs and not any(tokens.any() for tokens in outputs):
        because.append("every output token is 0: the router logits were no numbers")
        return diagnosis("nan-logits", 0.8, because, trace)
    return diagnosis("filler-as-real", 0.7, because, trace)


def _missing(trace: Trace, findings: tuple[Finding, ...]) -> Diagnosis:
    named = {finding.request for finding in findings}
    numbers = [i for i, name in enumerate(trace.requests.id) if str(name) in named]
    because = [f"{counted(len(findings), 'request')} with fewer rows than tokens that were fed"]
    if numbers and all(int(trace.requests.output_len[i]) == 0 for i in numbers):
        because.append("none of them sampled a token: the last prompt row was cut off with it")
        return diagnosis("prefill-only-short", 0.8, because, trace)
    return diagnosis("prompt-truncated|read-early|turn-gap", 0.55, because, trace)


def _sentinels(trace: Trace, findings: tuple[Finding, ...]) -> Diagnosis:
    if (column := shared_column_of_sentinels(trace)) is not None:
        return column
    because = [f"rows with both real ids and a sentinel ({_requests(trace, findings)})"]
    layers = {finding.layers for finding in findings}
    named = rows_of_findings(trace, findings)[trace.rows.validity == Validity.REAL]
    if len(layers) == 1 and run_facts(trace).draft_layers and named.mean() > _NEARLY_ALL:
        because += [
            f"all of them lack {layers_text(layers.pop())}, and nothing else",
            "a draft model was configured: its capturer, with its layers, may have taken the target's place",
        ]
        return diagnosis("draft-recreates-capturer", 0.95, because, trace)
    if len(layers) == 1 and run_facts(trace).draft_layers is None and named.sum() > _NEARLY_ALL * len(named):
        because.append(
            f"all rows lack {layers_text(layers.pop())}, and nothing else: as if a capturer with fewer "
            "layers, a draft's, had taken the target's place"
        )
        return diagnosis("draft-recreates-capturer|partial-sentinel", 0.8, because, trace)
    return diagnosis("partial-sentinel", 0.9, because, trace)


def _constant(trace: Trace, findings: tuple[Finding, ...]) -> Diagnosis:
    columns = [column for f in findings for column in f.evidence.get("columns", ())]
    named = sorted({(int(column["slot"]), int(column["id"])) for column in columns})
    which = ", ".join(f"slot {slot} holds id {value}" for slot, value in named[:4])
    because = [f"{which} under every token ({_requests(trace, findings)})"]
    facts = run_facts(trace)
    if facts.fused_shared_expert is False:
        because.append("no shared expert was fused with the routed ones, so it has no column")
        return diagnosis("unknown", 0.3, because, trace)
    if facts.fused_shared_expert:
        because.append("the shared expert was fused with the routed ones: its column was not stripped")
    return diagnosis("shared-expert-column", 0.95 if facts.fused_shared_expert else 0.8, because, trace)


def _absent(trace: Trace, findings: tuple[Finding, ...]) -> Diagnosis:
    because = [f"requests whose payload is absent ({_requests(trace, findings)})"]
    facts = run_facts(trace)
    if facts.mixed_opt_in:
        because.append("other requests of the run did not ask for theirs: results may have been mixed up")
        return diagnosis("batch-index-swap|missing-request", 0.7, because, trace)
    if facts.mixed_opt_in is None and len(findings) < len(trace.requests):
        because.append(
            "the trace does not tell which requests asked for theirs: results may have been mixed up"
        )
        return diagnosis("batch-index-swap|missing-request", 0.7, because, trace)
    if facts.draft_layers and len(findings) == len(trace.requests):
        because.append("a draft model was configured: a capturer of another shape leaves nothing readable")
        return diagnosis("draft-recreates-capturer|missing-request", 0.7, because, trace)
    return diagnosis("missing-request", 0.8, because, trace)


def _requests(trace: Trace, findings: tuple[Finding, ...]) -> str:
    named = {(f.request, f.evidence.get("sample", 0)) for f in findings if f.request is not None}
    return of_all(len(named), len(trace.requests), "request")


def _always(cause: str, confidence: float, reason: str) -> Callable[[Trace, tuple[Finding, ...]], Diagnosis]:
    def explain(trace: Trace, findings: tuple[Finding, ...]) -> Diagnosis:
        is_local = any(finding.request is not None for finding in findings)
        where = f" ({_requests(trace, findings)})" if is_local else ""
        return diagnosis(cause, confidence, [reason + where], trace)

    return explain


_EXPLAINED: Mapping[str, Callable[[Trace, tuple[Finding, ...]], Diagnosis | tuple[Diagnosis, ...]]] = {
    "missing-request": _absent,
    "missing-rows": _missing,
    "surplus-rows": diagnose_surplus,
    "id-out-of-range": diagnose_out_of_range,
    "partial-sentinel": _sentinels,
    "duplicate-experts": diagnose_duplicates,
    "filler-rows": _filler,
    "repeated-rows": diagnose_repeated,
    "stale-rows": _stale,
    "constant-column": _constant,
    "equal-layers": diagnose_equal_layers,
    "id-cliff": _always("uint8-wrap", 0.9, "over 256 experts, and no id above 255 in 10,000 or more"),
}
"""How each rule other than the zero rules is read; the order is that of the rules."""
