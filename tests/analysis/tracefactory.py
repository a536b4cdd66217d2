"""Healthy traces for tests: rows are a function of the token prefix, as with a deterministic model.

`routed` draws a top-k row from a hash of the tokens up to and including each position (or of the last
`context` tokens only), so that equal prefixes give equal rows in whatever request they stand. `make_trace`
puts requests together as the reader would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeinspect.trace.schema import (
    InvalidCells,
    ModelFacts,
    Origin,
    RequestRecord,
    Requests,
    Rows,
    RunInfo,
    Trace,
    Validity,
)

U64 = np.uint64


def make_facts(
    layers: int = 4,
    experts: int = 16,
    top_k: int = 4,
    *,
    layer_axis: str = "moe",
    moe_layers: Sequence[int] | None = None,
    exempt: Sequence[int] = (),
    fingerprint: str = "f" * 16,
) -> ModelFacts:
    """A model of `layers` decoder layers, all of them MoE unless `moe_layers` says otherwise."""
    return ModelFacts(
        name="factory",
        architecture="FactoryForCausalLM",
        fingerprint=fingerprint,
        num_hidden_layers=layers,
        num_experts=experts,
        top_k=top_k,
        layer_axis=layer_axis,
        moe_layers=tuple(range(layers)) if moe_layers is None else tuple(moe_layers),
        capture_exempt_layers=tuple(exempt),
    )


def mix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> U64(30))) * U64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> U64(27))) * U64(0x94D049BB133111EB)
    return x ^ (x >> U64(31))


def context_hashes(tokens: NDArray[np.int32], context: int | None = None) -> NDArray[np.uint64]:
    """A hash [T] of the tokens up to each position, or of the last `context` of them."""
    hashes = np.zeros(len(tokens), dtype=np.uint64)
    for end in range(len(tokens)):
        start = 0 if context is None else max(0, end + 1 - context)
        value = U64(end + 1 - start)
        for token in tokens[start : end + 1]:
            value = mix64(np.asarray([value ^ U64(int(token) + 1)], dtype=np.uint64) + U64(0x9E37))[0]
        hashes[end] = value
    return hashes


def routed(
    tokens: Sequence[int] | NDArray[np.int32],
    facts: ModelFacts,
    *,
    seed: int = 0,
    skew: float = 0.0,
    context: int | None = None,
    sharpness: float = 1.0,
) -> NDArray[np.int64]:
    """Router-ordered ids [T, L, K] for every position of `tokens`.

    `skew` is the exponent of a Zipf law over experts (0: uniform; each layer ranks its experts its own
    way). `context` None: the whole prefix counts; n: only the last n tokens, so that a text gives the same
    rows wherever it stands. `sharpness` below 1 lets the popularity of an expert weigh more.
    """
    tokens = np.asarray(tokens, dtype=np.int32)
    M, E, K = len(facts.moe_layers), facts.num_experts, facts.top_k
    hashes = context_hashes(tokens, context)
    rng = np.random.default_rng(seed)
    ranked = [rng.permutation(-skew * np.log1p(np.arange(E))) for _ in range(M)]
    popularity = np.asarray(ranked, dtype=np.float64).reshape(M, E)
    salt = np.arange(M * E, dtype=np.uint64).reshape(M, E) * U64(0x9E3779B97F4A7C15) + U64(seed)
    keys = mix64(hashes[:, None, None] ^ mix64(salt)[None])
    uniform = (keys.astype(np.float64) + 0.5) / 2.0**64
    scores = popularity[None] - sharpness * np.log(-np.log(uniform))
    return np.argsort(-scores, axis=2, kind="stable")[:, :, :K].astype(np.int64)


def on_axis(ids: NDArray[Any], facts: ModelFacts, dense_value: int | None = None) -> NDArray[Any]:
    """Ids of the MoE layers [T, M, K] on the model's layer axis [T, L, K]."""
    if facts.layer_axis == "moe":
        return ids
    fill = facts.sentinel if dense_value is None else dense_value
    full = np.full((len(ids), facts.num_hidden_layers, ids.shape[2]), fill, dtype=ids.dtype)
    full[:, list(facts.moe_layers)] = ids
    return full


def make_record(
    request_id: str,
    prompt: Sequence[int] | NDArray[np.int32],
    output: Sequence[int] | NDArray[np.int32],
    facts: ModelFacts,
    *,
    start_pos: int = 0,
    first_slot: int = 0,
    seed: int = 0,
    skew: float = 0.0,
    context: int | None = None,
    sharpness: float = 1.0,
    **changes: Any,
) -> RequestRecord:
    """One healthy request; `changes` replace fields of the record (`sample=1`, `dp_rank=1`, ...)."""
    prompt_ids = np.asarray(prompt, dtype=np.int32)
    output_ids = np.asarray(output, dtype=np.int32)
    fed = np.concatenate([prompt_ids, output_ids[:-1]])
    ids = on_axis(routed(fed, facts, seed=seed, skew=skew, context=context, sharpness=sharpness), facts)
    ids = ids[start_pos:]
    n = len(ids)
    positions = start_pos + np.arange(n)
    decoded = positions >= len(prompt_ids)
    record = RequestRecord(
        id=request_id,
        prompt_ids=prompt_ids,
        output_ids=output_ids,
        expert_ids=ids,
        validity=np.full(n, Validity.REAL, dtype=np.uint8),
        origin=np.where(decoded, Origin.DECODE, Origin.PREFILL).astype(np.uint8),
        worker=np.zeros(n, dtype=np.uint16),
        step=np.maximum(0, positions - len(prompt_ids) + 1).astype(np.int32),
        slot=(first_slot + np.arange(n)).astype(np.int32),
        row_weight_version=np.zeros(n, dtype=np.uint16),
        start_pos=start_pos,
    )
    return replace(record, **changes)


def random_record(
    request_id: str,
    facts: ModelFacts,
    rng: np.random.Generator,
    *,
    prompt_len: int = 24,
    output_len: int = 16,
    vocab: int = 500,
    prefix: Sequence[int] = (),
    **options: Any,
) -> RequestRecord:
    """A healthy request with random tokens, `prefix` first."""
    prompt = [*prefix, *rng.integers(0, vocab, prompt_len - len(prefix)).tolist()]
    return make_record(request_id, prompt, rng.integers(0, vocab, output_len), facts, **options)


def make_records(
    facts: ModelFacts, count: int = 4, *, seed: int = 0, model_seed: int = 0, **options: Any
) -> list[RequestRecord]:
    """`count` healthy random requests `r0`, `r1`, ... with KV slots that no two of them share."""
    rng = np.random.default_rng(seed)
    records: list[RequestRecord] = []
    slot = 0
    for number in range(count):
        record = random_record(f"r{number}", facts, rng, first_slot=slot, seed=model_seed, **options)
        slot += len(record.expert_ids)
        records.append(record)
    return records


def make_run(**changes: Any) -> RunInfo:
    """Attributes of a run of the local runtime."""
    run = RunInfo(
        producer="moeinspect",
        producer_version="0",
        created="2026-01-01T00:00:00Z",
        complete=True,
        engine="local",
        engine_version="0",
        machine_key="factory",
        deterministic=True,
        run_config={},
    )
    return replace(run, **changes)


def make_trace(
    records: Sequence[RequestRecord],
    facts: ModelFacts,
    *,
    run: Mapping[str, Any] | None = None,
    path: str = "factory.h5",
    weight_versions: tuple[str, ...] = ("default",),
    worker_names: tuple[str, ...] = ("unified",),
    notes: tuple[str, ...] = (),
) -> Trace:
    """The trace that reading a file with these requests would give (nothing is wrapped or cut)."""
    shape = (0, facts.num_captured_layers, facts.top_k)
    ids = [_stored(record, facts) for record in records]
    bases = np.cumsum([0] + [len(record.expert_ids) for record in records])
    invalid = [_invalid_cells(r, facts, int(base)) for r, base in zip(records, bases, strict=False)]
    rows = Rows(
        expert_ids=np.concatenate([np.zeros(shape, facts.id_dtype), *ids]),
        validity=_column([_validity(record, facts) for record in records], np.uint8),
        origin=_column([record.origin for record in records], np.uint8),
        worker=_column([record.worker for record in records], np.uint16),
        step=_column([record.step for record in records], np.int32),
        slot=_column([record.slot for record in records], np.int32),
        weight_version=_column([record.row_weight_version for record in records], np.uint16),
        weights=_optional([record.weights for record in records]),
        margin=_optional([record.margin for record in records]),
        invalid_cells=InvalidCells(
            row=_column([cells[0] for cells in invalid], np.int64),
            layer=_column([cells[1] for cells in invalid], np.int32),
            slot=_column([cells[2] for cells in invalid], np.int32),
            value=_column([cells[3] for cells in invalid], np.int64),
        ),
    )
    tokens = _column([np.concatenate([r.prompt_ids, r.output_ids]) for r in records], np.int32)
    return Trace(
        path=path,
        run=make_run(**(run or {})),
        model=facts,
        weight_versions=weight_versions,
        worker_names=worker_names,
        requests=_requests(records),
        tokens=tokens,
        rows=rows,
        notes=notes,
    )


def _column(parts: Sequence[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype), *parts]).astype(dtype)


def _optional(parts: Sequence[NDArray[np.float32] | None]) -> NDArray[np.float32] | None:
    given = [part for part in parts if part is not None]
    return np.concatenate(given) if parts and len(given) == len(parts) else None


def _unstorable(record: RequestRecord, facts: ModelFacts) -> NDArray[np.bool_]:
    ids = np.asarray(record.expert_ids).astype(np.int64)
    return (ids < 0) | (ids > facts.sentinel)


def _stored(record: RequestRecord, facts: ModelFacts) -> NDArray[Any]:
    return np.where(_unstorable(record, facts), facts.sentinel, record.expert_ids).astype(facts.id_dtype)


def _validity(record: RequestRecord, facts: ModelFacts) -> NDArray[np.uint8]:
    bad = _unstorable(record, facts).any(axis=(1, 2)) & (record.validity == Validity.REAL)
    return np.where(bad, np.uint8(Validity.INVALID), record.validity)


def _invalid_cells(record: RequestRecord, facts: ModelFacts, base: int) -> tuple[NDArray[Any], ...]:
    bad = _unstorable(record, facts) & (record.validity != Validity.MISSING)[:, None, None]
    if facts.layer_axis == "all":
        bad[:, [layer for layer in range(bad.shape[1]) if layer not in facts.moe_layers]] = False
    row, place, slot = np.nonzero(bad)
    layer = facts.layer_indices()[place]
    return row + base, layer, slot, np.asarray(record.expert_ids)[row, place, slot].astype(np.int64)


def _requests(records: Sequence[RequestRecord]) -> Requests:
    prompt_len = np.asarray([len(r.prompt_ids) for r in records], dtype=np.int32)
    output_len = np.asarray([len(r.output_ids) for r in records], dtype=np.int32)
    num_rows = np.asarray([len(r.expert_ids) for r in records], dtype=np.int32)

    def starts(lengths: NDArray[np.int32]) -> NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])[: len(lengths)].astype(np.int64)

    def field(name: str, dtype: type[np.generic]) -> NDArray[Any]:
        return np.asarray([getattr(record, name) for record in records], dtype=dtype)

    return Requests(
        id=np.asarray([record.id for record in records], dtype=np.str_),
        sample=field("sample", np.int32),
        prompt_len=prompt_len,
        output_len=output_len,
        token_start=starts(prompt_len + output_len),
        row_start=starts(num_rows),
        num_rows=num_rows,
        start_pos=field("start_pos", np.int32),
        finish_reason=field("finish_reason", np.uint8),
        cached_tokens=field("cached_tokens", np.int32),
        num_retractions=field("num_retractions", np.int32),
        num_drafted=field("num_drafted", np.int32),
        num_accepted=field("num_accepted", np.int32),
        weight_version=field("weight_version", np.uint16),
        num_weight_versions=field("num_weight_versions", np.uint16),
        dp_rank=field("dp_rank", np.int32),
    )
