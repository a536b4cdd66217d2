"""Random pairs of traces, and what a comparison of them must find, in plain loops over sets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from analysis.tracefactory import make_facts, make_trace
from hypothesis import strategies as st

from moeinspect.trace.schema import ModelFacts, Origin, RequestRecord, Trace, Validity


@dataclass
class Expected:
    """What the loops found. Cells are keyed by (pair, position, layer)."""

    rows_compared: int = 0
    cells: dict[tuple[int, int, int], float] = field(default_factory=dict)
    """Share of common experts of each compared cell."""
    set_mismatch: set[tuple[int, int, int]] = field(default_factory=set)
    order_mismatch: set[tuple[int, int, int]] = field(default_factory=set)
    weight_mismatch: set[tuple[int, int, int]] = field(default_factory=set)
    only_a: set[tuple[int, int]] = field(default_factory=set)
    only_b: set[tuple[int, int]] = field(default_factory=set)
    requests_only_a: int = 0
    requests_only_b: int = 0
    not_comparable: int = 0
    not_real: int = 0


def expected(a: Trace, b: Trace, weight_bound: float | None) -> Expected:
    """Compares two traces one cell at a time; `weight_bound` None asks for equal bits."""
    found = Expected()
    by_key = {
        (str(n), int(s)): i for i, (n, s) in enumerate(zip(b.requests.id, b.requests.sample, strict=True))
    }
    keys_a = [(str(n), int(s)) for n, s in zip(a.requests.id, a.requests.sample, strict=True)]
    pairs = [(i, by_key[key]) for i, key in enumerate(keys_a) if key in by_key]
    found.requests_only_a = len(keys_a) - len(pairs)
    found.requests_only_b = len(by_key) - len(pairs)
    layers = sorted(set(a.model.moe_layers) & set(b.model.moe_layers))
    for number, (i, j) in enumerate(pairs):
        tokens_a, tokens_b = a.tokens_of(i).tolist(), b.tokens_of(j).tolist()
        rows_a, rows_b = _rows(a, i), _rows(b, j)
        for position in sorted(rows_a.keys() | rows_b.keys()):
            in_both = position in rows_a and position in rows_b
            before = tokens_a[: position + 1] == tokens_b[: position + 1]
            agrees_as_far_as_known = all(
                x == y for x, y in zip(tokens_a[: position + 1], tokens_b[: position + 1], strict=False)
            )
            if not (before and position < len(tokens_a) if in_both else agrees_as_far_as_known):
                found.not_comparable += 1
                continue
            real_a = position in rows_a and a.rows.validity[rows_a[position]] == Validity.REAL
            real_b = position in rows_b and b.rows.validity[rows_b[position]] == Validity.REAL
            if (position in rows_a and not real_a) or (position in rows_b and not real_b):
                found.not_real += 1
            if real_a and real_b:
                found.rows_compared += 1
                for layer in layers:
                    _compare_cell(
                        found,
                        (number, position, layer),
                        a,
                        b,
                        rows_a[position],
                        rows_b[position],
                        weight_bound,
                    )
            elif real_a:
                found.only_a.add((number, position))
            elif real_b:
                found.only_b.add((number, position))
    return found


def _rows(trace: Trace, request: int) -> dict[int, int]:
    rows = trace.row_range(request)
    start = int(trace.requests.start_pos[request])
    return {start + k: row for k, row in enumerate(range(rows.start, rows.stop))}


def _compare_cell(
    found: Expected, key: Any, a: Trace, b: Trace, row_a: int, row_b: int, weight_bound: float | None
) -> None:
    place_a = a.axis_layers().tolist().index(key[2])
    place_b = b.axis_layers().tolist().index(key[2])
    ids_a = a.rows.expert_ids[row_a, place_a].tolist()
    ids_b = b.rows.expert_ids[row_b, place_b].tolist()
    found.cells[key] = len(set(ids_a) & set(ids_b)) / a.model.top_k
    if set(ids_a) != set(ids_b):
        found.set_mismatch.add(key)
        return
    if a.run.slot_order == b.run.slot_order == "router" and ids_a != ids_b:
        found.order_mismatch.add(key)
    if a.rows.weights is not None and b.rows.weights is not None and len(set(ids_a)) == len(ids_a):
        weights_b = dict(zip(ids_b, b.rows.weights[row_b, place_b], strict=True))
        for expert, weight in zip(ids_a, a.rows.weights[row_a, place_a], strict=True):
            other = weights_b[expert]
            differs = (
                np.float32(weight).tobytes() != np.float32(other).tobytes()
                if weight_bound is None
                else not abs(float(weight) - float(other)) <= weight_bound
            )
            if differs:
                found.weight_mismatch.add(key)


@st.composite
def trace_pairs(draw: st.DrawFn) -> tuple[Trace, Trace]:
    """Two small traces of one model; B is A with some of it changed, dropped or moved."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    top_k = draw(st.integers(1, 4))
    experts = draw(st.integers(top_k + 1, 9))
    layers = draw(st.integers(1, 5))
    moe = sorted(rng.choice(layers, size=int(rng.integers(1, layers + 1)), replace=False).tolist())
    facts = [
        make_facts(layers, experts, top_k, layer_axis=draw(st.sampled_from(["all", "moe"])), moe_layers=moe)
        for _ in range(2)
    ]
    records = [_random_record(f"r{n}", facts[0], rng) for n in range(draw(st.integers(1, 4)))]
    noise = draw(st.sampled_from([0.0, 0.1, 0.5]))
    others = [_changed(record, facts[0], facts[1], rng, noise) for record in records]
    rng.shuffle(others)
    if len(others) > 1 and rng.random() < 0.3:
        others.pop()
    if rng.random() < 0.3:
        others.append(_random_record("extra", facts[1], rng))
    orders = draw(st.sampled_from([("router", "router"), ("router", "unknown"), ("sorted", "sorted")]))
    exact = draw(st.booleans())
    runs = [
        {
            "slot_order": orders[side],
            "machine_key": "" if not exact else "key",
            "run_config": {"dtype": "float32"},
        }
        for side in (0, 1)
    ]
    a, b = (make_trace(r, f, run=run) for r, f, run in zip((records, others), facts, runs, strict=True))
    if not draw(st.booleans()):
        b = replace(b, rows=replace(b.rows, weights=None))
    return a, b


def _random_record(name: str, facts: ModelFacts, rng: np.random.Generator) -> RequestRecord:
    prompt, output = rng.integers(0, 3, rng.integers(1, 6)), rng.integers(0, 3, rng.integers(1, 5))
    n = len(prompt) + len(output) - 1 + int(rng.integers(0, 3) // 2 * 2)
    start = int(rng.integers(0, min(3, n) + 1))
    n -= start
    ids = np.stack(
        [
            np.stack(
                [rng.permutation(facts.num_experts)[: facts.top_k] for _ in range(facts.num_captured_layers)]
            )
            for _ in range(n)
        ]
        or [np.zeros((facts.num_captured_layers, facts.top_k), int)]
    )[:n]
    if n and rng.random() < 0.3:
        ids[rng.integers(n)] = 0 if rng.random() < 0.5 else rng.integers(0, facts.num_experts, ids.shape[1:])
    return _record(name, prompt, output, ids, rng.random(ids.shape).astype(np.float32), start, rng)


def _record(
    name: str, prompt: Any, output: Any, ids: Any, weights: Any, start: int, rng: Any
) -> RequestRecord:
    n = len(ids)
    validity = np.where(rng.random(n) < 0.1, rng.integers(1, 4, n), 0).astype(np.uint8)
    return RequestRecord(
        id=name,
        prompt_ids=prompt.astype(np.int32),
        output_ids=output.astype(np.int32),
        expert_ids=ids,
        validity=validity,
        origin=np.full(n, Origin.PREFILL, np.uint8),
        worker=np.zeros(n, np.uint16),
        step=np.zeros(n, np.int32),
        slot=np.zeros(n, np.int32),
        row_weight_version=np.zeros(n, np.uint16),
        weights=weights,
        start_pos=start,
    )


def _changed(
    record: RequestRecord, old: ModelFacts, new: ModelFacts, rng: np.random.Generator, noise: float
) -> RequestRecord:
    ids, weights = _moved(record.expert_ids, old, new), _moved(record.weights, old, new)
    for row, layer in np.argwhere(rng.random(ids.shape[:2]) < noise):
        kind = rng.integers(5)
        order = rng.permutation(old.top_k)
        if kind == 0:
            ids[row, layer] = rng.permutation(old.num_experts)[: old.top_k]
        elif kind == 1:
            ids[row, layer], weights[row, layer] = ids[row, layer][order], weights[row, layer][order]
        elif kind == 2:
            weights[row, layer, 0] += np.float32(rng.choice([1e-7, 1e-6, 1e-3, np.nan]))
        elif kind == 3:
            ids[row, layer] = 0
        else:
            ids[row, layer] = rng.integers(0, old.num_experts, old.top_k)
    prompt, output, start = record.prompt_ids, record.output_ids.copy(), record.start_pos
    if rng.random() < 0.3:
        output[rng.integers(len(output))] += 1
    if rng.random() < 0.3 and len(ids) > 1:
        ids, weights, start = ids[1:], weights[1:], start + 1
    if rng.random() < 0.3:
        ids, weights = ids[: len(ids) - 1], weights[: len(ids) - 1]
    return _record(record.id, prompt, output, ids, weights, start, rng)


def _moved(values: Any, old: ModelFacts, new: ModelFacts) -> Any:
    """Values [n, L, K] on another layer axis; what the other axis does not hold is filled."""
    full = np.full((len(values), old.num_hidden_layers, old.top_k), 7, dtype=values.dtype)
    axis = list(range(old.num_hidden_layers)) if old.layer_axis == "all" else list(old.moe_layers)
    full[:, axis] = values
    return full if new.layer_axis == "all" else full[:, list(new.moe_layers)]
