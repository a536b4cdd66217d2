"""A trainer that was given the recorded rows and routed by itself all the same: `replay-noop`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from moeinspect.trace.schema import RequestRecord, Trace
from moeinspect.trace.transport.fault import fault_of_variants
from moeinspect.trace.transport.records import records_of, trace_of

TRAINER = "megatron"
"""What routed the rows: an engine of its own."""

STATED = {"routing_replay": "R3"}
"""What the trainer's configuration says of itself."""


def replay_without_effect(
    trace: Trace,
    rate: float,
    rng: np.random.Generator,
    *,
    first_layer: float = 0.0,
    share: float = 1.0,
    stated: bool = True,
) -> Trace:
    """The trainer's own choices: those of the rollout but for flips at near-ties, more of them with depth.

    verl#7340 replayed into router objects that no longer ran, prime-rl#2738 had a model class that ignored
    the rows. `rate` is the share of cells that flip over all layers; `first_layer`, from 0 to 1, where the
    layers begin in which replay does nothing; `share`, that of the requests.
    """
    records = records_of(trace)
    moe = trace.axis_layers().searchsorted(np.asarray(trace.model.moe_layers))
    depth = np.linspace(0.2, 1.8, len(moe)) if len(moe) > 1 else np.ones(1)
    depth[: round(first_layer * len(moe))] = 0
    for number, record in enumerate(records):
        if number == 0 or rng.random() < share:
            records[number] = flipped(record, moe, rate * depth, trace.model.num_experts, rng)
    config = {**trace.run.run_config, **(STATED if stated else {})}
    run = replace(trace.run, engine=TRAINER, engine_version="", run_config=config, deterministic=False)
    changed = trace_of(trace, records)
    return replace(changed, run=run)


def flipped(
    record: RequestRecord,
    axis: NDArray[np.int64],
    rates: NDArray[np.float64],
    num_experts: int,
    rng: np.random.Generator,
) -> RequestRecord:
    """The request with the last expert of some cells exchanged, at `rates` [L] over the places `axis` [L].

    Tokens differ in how near to a tie they stand. Where margins are known, the smallest ones of a layer flip.
    """
    ids = record.expert_ids.copy()
    num_rows, top_k = len(ids), ids.shape[2]
    if not num_rows or top_k >= num_experts:
        return record
    per_token = rng.lognormal(0.0, 0.5, num_rows)
    per_token /= per_token.mean()
    draws = rng.random((num_rows, len(axis)))
    if record.margin is not None:
        order = np.argsort(np.argsort(record.margin[:, axis], axis=0), axis=0)
        draws = (order + 0.5) / num_rows
    row, layer = np.nonzero(draws < per_token[:, None] * rates)
    place = axis[layer]
    drawn = rng.integers(0, num_experts, len(row))
    for _ in range(num_experts):
        taken = (ids[row, place] == drawn[:, None]).any(axis=1)
        if not taken.any():
            break
        drawn[taken] = (drawn[taken] + 1) % num_experts
    ids[row, place, top_k - 1] = drawn
    return replace(record, expert_ids=ids)


def _stated(trace: Trace, rng: np.random.Generator, *, first_layer: float = 0.0, share: float = 1.0) -> Trace:
    return replay_without_effect(
        trace, float(rng.uniform(0.01, 0.1)), rng, first_layer=first_layer, share=share
    )


REPLAY_NOOP = fault_of_variants(
    "replay-noop",
    "verl#7340, prime-rl#2738",
    {
        "everywhere": _stated,
        "upper-layers": partial(_stated, first_layer=0.5),
        "some-requests": partial(_stated, share=0.3),
    },
)
