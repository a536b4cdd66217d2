"""Rules without statistics against plain loops, on small random traces that hold every kind of fault."""

from __future__ import annotations

import numpy as np
from analysis.rules.reference import Found, cell_rules, checked_rows, expected_findings
from analysis.tracefactory import make_facts, make_trace, random_record
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinspect.analysis.rules import check_trace
from moeinspect.trace.schema import RequestRecord, Trace, Validity

EXACT = {
    "missing-request",
    "missing-rows",
    "surplus-rows",
    "id-out-of-range",
    "partial-sentinel",
    "zero-layers",
    "zero-rows",
    "duplicate-experts",
}


def found(trace: Trace) -> set[Found]:
    return {
        (f.rule, f.request or "", f.rows or (0, 0), f.layers, f.count)
        for f in check_trace(trace, 0).findings
        if f.rule in EXACT
    }


def spoil(record: RequestRecord, rng: np.random.Generator, num_experts: int) -> None:
    """Writes zeros, repeats, sentinels and wrong ids over random blocks of cells."""
    n, L, K = record.expert_ids.shape
    for _ in range(int(rng.integers(0, 5))):
        rows = slice(int(rng.integers(0, n)), n if rng.random() < 0.3 else int(rng.integers(1, n + 1)))
        layers = (
            slice(None) if rng.random() < 0.3 else slice(int(rng.integers(0, L)), int(rng.integers(1, L + 1)))
        )
        slots = slice(None) if rng.random() < 0.5 else slice(0, int(rng.integers(1, K + 1)))
        value = rng.choice([0, 0, 0, 1, -1, -1, num_experts, num_experts + 3, 255, 70_000, -9])
        record.expert_ids[rows, layers, slots] = value
    if rng.random() < 0.3:
        record.expert_ids[:, int(rng.integers(0, L))] = 0
    chosen = rng.random(n) < 0.15
    record.validity[chosen] = rng.integers(0, 4, int(chosen.sum()))
    if rng.random() < 0.1:
        record.validity[:] = Validity.MISSING


def cut(record: RequestRecord, rng: np.random.Generator) -> RequestRecord:
    """Drops some last rows, or says that tokens are fewer."""
    keep = int(rng.integers(0, len(record.expert_ids) + 1)) if rng.random() < 0.2 else len(record.expert_ids)
    for name in ("expert_ids", "validity", "origin", "worker", "step", "slot", "row_weight_version"):
        setattr(record, name, getattr(record, name)[:keep])
    if rng.random() < 0.2 and len(record.output_ids) > 2:
        record.output_ids = record.output_ids[:-2]
    return record


def spoiled_trace(seed: int) -> Trace:
    rng = np.random.default_rng(seed)
    layers = int(rng.integers(1, 5))
    moe = sorted(rng.choice(layers, int(rng.integers(1, layers + 1)), replace=False).tolist())
    top_k = int(rng.integers(1, 4))
    experts = int(rng.choice([top_k + 1, 6, 255, 256, 300]))
    exempt = [layer for layer in moe if rng.random() < 0.2]
    axis = "all" if rng.random() < 0.5 else "moe"
    facts = make_facts(layers, experts, top_k, layer_axis=axis, moe_layers=moe, exempt=exempt)
    records = []
    for number in range(int(rng.integers(1, 4))):
        prompt_len = int(rng.integers(2, 8))
        record = random_record(
            f"r{number}",
            facts,
            rng,
            prompt_len=prompt_len,
            output_len=int(rng.integers(1, 6)),
            start_pos=int(rng.integers(0, prompt_len)) if rng.random() < 0.3 else 0,
        )
        if len(record.expert_ids):
            spoil(record, rng, experts)
        records.append(cut(record, rng))
    return make_trace(records, facts)


@settings(max_examples=250, deadline=None)
@given(st.integers(0, 10**9))
def test_findings_of_the_exact_rules_equal_those_of_plain_loops(seed):
    trace = spoiled_trace(seed)
    assert found(trace) == expected_findings(trace)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**9))
def test_counts_equal_those_of_plain_loops(seed):
    trace = spoiled_trace(seed)
    counts = check_trace(trace).counts
    rows = sum(len(list(checked_rows(trace, i))) for i in range(len(trace.requests)))
    assert counts["rows_checked"] == rows
    assert counts["cells_checked"] == rows * len(trace.model.moe_layers)
    assert counts["cells_flagged"] >= len(cell_rules(trace))
    assert counts["cells_flagged"] <= counts["cells_checked"]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**9))
def test_cells_flagged_is_the_sum_over_findings_in_cells(seed):
    result = check_trace(spoiled_trace(seed))
    in_cells = sum(f.count for f in result.findings if f.layers and f.severity != "note")
    assert result.counts["cells_flagged"] == in_cells


def test_the_random_traces_hold_every_exact_rule():
    rules = {rule for seed in range(300) for rule, *_ in expected_findings(spoiled_trace(seed))}
    assert rules == EXACT
