"""Causes of runs on several ranks, with placed or shared experts: each for its own geometry only."""

from dataclasses import replace

import numpy as np
import pytest
from analysis.diagnose.faultytraces import (
    FACTS,
    PROMPT,
    first_rows,
    foreign,
    records,
    spoiled,
    trace,
    zeroed,
)
from analysis.diagnose.test_diagnose_diff import causes as diff_causes
from analysis.tracefactory import make_facts, make_records, make_trace

from moeinspect.analysis.check import check_report
from moeinspect.analysis.compare import diff_report
from moeinspect.analysis.diagnose import diagnose_check
from moeinspect.analysis.findings import Finding
from moeinspect.trace.schema import Origin

TILE = 4
E = FACTS.num_experts


def diagnoses(*traces):
    return check_report(traces).diagnoses


def causes(*traces):
    return [one.cause for one in diagnoses(*traces)]


def sharded(made, tp, *, tile=TILE):
    """What is left of each step's rows if only the first of `tp` ranks is asked for those it computed."""
    steps = {}
    for number, record in enumerate(made):
        for row, place in enumerate(zip(record.worker.tolist(), record.step.tolist(), strict=True)):
            steps.setdefault(place, []).append((number, row))
    ids = [record.expert_ids.copy() for record in made]
    for rows in steps.values():
        for number, row in rows[tile * -(-len(rows) // (tile * tp)) :]:
            ids[number][row] = 0
    return [replace(record, expert_ids=left) for record, left in zip(made, ids, strict=True)]


@pytest.mark.parametrize("tp", [2, 4])
def test_a_tail_of_zeros_in_each_step_is_a_shard_that_was_never_gathered(tp):
    bad = trace(sharded(records(6, disagg=False), tp, tile=8 // tp), disagg=False, tp_size=tp)
    (one,) = diagnoses(bad)
    assert (one.cause, one.confidence) == ("tp-shard", 0.95)
    assert "--tp-size 1" in one.next_step
    assert diff_causes(bad, trace(records(6, disagg=False), disagg=False)) == ["tp-shard"]


def test_one_rank_has_no_shard():
    bad = trace(sharded(records(disagg=False), 2), disagg=False, tp_size=1)
    assert "tp-shard" not in causes(bad)


def test_zeros_of_a_cached_prefix_are_shards_if_they_are_the_tails_of_the_steps_that_computed_it():
    (record,) = records(1, disagg=False)
    (bad,) = sharded([record], 2)
    origin, step = record.origin.copy(), record.step.copy()
    origin[:20], step[20:PROMPT] = Origin.PREFIX_CACHE, 50
    cached = replace(record, origin=origin, step=step, cached_tokens=20)

    def with_prefix(ids, end):
        one = replace(cached, expert_ids=np.concatenate([ids[:end], record.expert_ids[end:]]))
        return [causes(trace([one], disagg=False, tp_size=size)) for size in (2, 1)]

    assert with_prefix(bad.expert_ids, 20) == [["tp-shard"], ["stale-slot"]]
    assert with_prefix(0 * record.expert_ids, 12) == [["stale-slot"], ["stale-slot"]]


def test_lost_ends_are_shards_only_where_nothing_is_read_early():
    def whole(record, number):
        return replace(first_rows(record, PROMPT, outputs=1), step=np.full(PROMPT, number, np.int32))

    made = sharded([whole(r, n) for n, r in enumerate(records(3, disagg=False))], 2, tile=16)
    (one,) = diagnoses(trace(made, disagg=False, tp_size=2, overlap=False))
    assert (one.cause, one.confidence) == ("tp-shard", 0.8)
    assert causes(trace(made, disagg=False, tp_size=2)) == ["read-early"]


def test_prompts_without_their_last_rows_are_a_shard_where_steps_are_not_known():
    def change(record, number):
        return zeroed(slice(PROMPT // 2, PROMPT))(record, number) | foreign(record)

    (one,) = diagnoses(spoiled(change, disagg=False))
    assert (one.cause, one.confidence) == ("tp-shard", 0.5)


@pytest.mark.parametrize(
    ("rows", "config", "cause"),
    [
        (slice(0, PROMPT), {}, "skip-finalize-prefill"),
        (slice(-3, None), {"disagg": False}, "read-early"),
        (slice(PROMPT, None), {"draft": "ngram"}, "verify-dropped"),
    ],
)
def test_other_zeros_keep_their_cause_where_rows_are_sharded(rows, config, cause):
    assert causes(spoiled(zeroed(rows), tp_size=2, **config)) == [cause]


def layers_zeroed(layers, **config):
    return spoiled(zeroed(slice(None), layers), disagg=False, **config)


@pytest.mark.parametrize(
    ("layers", "pp", "cause"),
    [
        ([2, 3], 2, "pp-stage"),
        ([2, 3], 3, "pp-stage"),
        ([0, 1], 2, "pp-stage"),
        ([3], 2, "unknown"),
        ([3], 1, "unknown"),
        ([0], 2, "hash-layer-uncaptured"),
        ([0], 1, "hash-layer-uncaptured"),
    ],
)
def test_zero_layers_of_whole_stages_are_theirs_and_the_first_ones_a_hash_router_s(layers, pp, cause):
    (one,) = diagnoses(layers_zeroed(layers, pp_size=pp, hash_layers=[0]))
    assert one.cause == cause
    assert one.confidence >= (0.3 if cause == "unknown" else 0.9)


@pytest.mark.parametrize("layers", [[0], [1, 3]])
def test_zero_layers_that_are_the_hash_routed_ones_are_theirs_wherever_they_stand(layers):
    (one,) = diagnoses(layers_zeroed(layers, hash_layers=layers))
    assert one.cause == "hash-layer-uncaptured" and one.confidence >= 0.9
    assert "hash-layer-uncaptured" not in causes(layers_zeroed([2], hash_layers=layers))[0]


def test_zero_layers_of_a_run_that_does_not_tell_its_stages_keep_all_names():
    assert causes(layers_zeroed([0])) == ["pp-stage"]
    imported = spoiled(lambda r, n: zeroed(slice(None), [0])(r, n) | foreign(r), disagg=False)
    assert causes(imported) == ["hash-layer-uncaptured|layer-shift|pp-stage"]


def test_zero_layers_of_a_stage_are_no_layers_of_a_draft():
    bad = layers_zeroed([2, 3], pp_size=2, draft="builtin:tiny-draft")
    assert diff_causes(bad) == ["pp-stage"]


def test_everything_zero_may_be_a_stage_only_if_no_moe_layer_is_in_the_first_one():
    facts = make_facts(4, 32, 4, moe_layers=(2, 3))
    zero = [replace(r, expert_ids=np.zeros_like(r.expert_ids)) for r in make_records(facts)]
    config = {"overlap": False, "backend": "torch", "pp_size": 2}
    assert causes(make_trace(zero, facts, run={"run_config": config})) == ["init-order|pp-stage"]
    assert causes(spoiled(zeroed(slice(None)), backend="torch", pp_size=2)) == ["init-order"]


def physical(record, copies):
    """Physical ids: the last `copies` experts have a copy beyond the experts, which odd rows choose."""
    ids = record.expert_ids.astype(np.int64)
    odd = np.arange(len(ids))[:, None, None] % 2 == 1
    return {"expert_ids": np.where(odd & (ids >= E - copies), ids + copies, ids)}


def test_ids_just_beyond_the_experts_are_physical_and_the_run_says_how_far_they_may_go():
    def bad(**config):
        return spoiled(lambda record, number: physical(record, 4), disagg=False, **config)

    (one,) = diagnoses(bad(redundant_experts=4))
    assert (one.cause, one.confidence) == ("physical-ids", 0.95)
    assert "--redundant-experts 0" in one.next_step
    assert causes(bad(redundant_experts=2, backend="bypass")) == ["kernel-uncaptured"]
    assert causes(bad(redundant_experts=0, backend="torch")) == ["unknown"]


def shared_column(value):
    def change(record, number):
        ids = record.expert_ids.astype(np.int64)
        ids[:, :, -1] = value
        return {"expert_ids": ids}

    return change


@pytest.mark.parametrize("value", [E, FACTS.sentinel, -1])
def test_one_id_in_the_last_slot_of_all_cells_is_the_column_of_a_fused_shared_expert(value):
    (one,) = diagnoses(spoiled(shared_column(value), disagg=False, fused_shared_expert=True))
    assert (one.cause, one.confidence) == ("shared-expert-column", 0.95)
    assert "--no-fused-shared-expert" in one.next_step
    assert causes(spoiled(shared_column(value), disagg=False)) == ["shared-expert-column"]
    alone = spoiled(shared_column(value), disagg=False, fused_shared_expert=False)
    assert "shared-expert-column" not in causes(alone)


def test_a_column_beside_physical_ids_leaves_both_causes():
    def change(record, number):
        ids = physical(record, 4)["expert_ids"]
        ids[:, :, -1] = E + 4
        return {"expert_ids": ids}

    switches = {"redundant_experts": 4, "fused_shared_expert": True}
    both = diagnoses(spoiled(change, disagg=False, **switches))
    assert {(one.cause, one.confidence) for one in both} == {
        ("shared-expert-column", 0.95),
        ("physical-ids", 0.95),
    }
    physical_only = spoiled(lambda record, number: physical(record, 4), disagg=False, **switches)
    assert causes(physical_only) == ["physical-ids"]


ACCEPTED = 2
"""Tokens that each verify step of the runs below feeds and accepts per request."""


def output_step(record):
    return 90 + (np.arange(len(record.step)) - PROMPT) // ACCEPTED


def verified(made, ranks=2):
    """The run with output rows from verify steps, and its requests spread over data-parallel ranks."""
    return [
        replace(
            record,
            dp_rank=number % ranks,
            worker=np.full(len(record.step), number % ranks, np.uint16),
            origin=np.where(record.origin == Origin.DECODE, Origin.VERIFY, record.origin).astype(np.uint8),
            step=np.where(record.origin == Origin.DECODE, output_step(record), record.step).astype(np.int32),
        )
        for number, record in enumerate(made)
    ]


def sliced(made):
    """Each rank's rows of a verify step, cut from the common batch behind one row per request before."""
    ids = [record.expert_ids.copy() for record in made]
    for step in range(90, 90 + len(made[0].step) // ACCEPTED):
        batch = [
            (rank, number, row)
            for rank in (0, 1)
            for number, record in enumerate(made)
            for row in np.flatnonzero(record.step == step).tolist()
            if record.dp_rank == rank
        ]
        own = [place for place in batch if place[0] == 1]
        start = len({number for rank, number, _ in batch if rank == 0})
        for (_, number, row), (_, source, source_row) in zip(own, batch[start:], strict=False):
            ids[number][row] = made[source].expert_ids[source_row]
    return [replace(record, expert_ids=held) for record, held in zip(made, ids, strict=True)]


def ranked_trace(made, **config):
    return trace(made, disagg=False, dp_size=2, draft="ngram", **config)


def test_rows_of_neighbours_in_verify_steps_of_later_ranks_are_a_slice_at_a_wrong_place():
    made = verified(records(6, disagg=False))
    good = trace(records(6, disagg=False), disagg=False, path="b.h5")
    assert diff_report(ranked_trace(made), good).verdict == "clean"
    (one,) = diff_report(ranked_trace(sliced(made)), good).diagnoses
    assert (one.cause, one.confidence) == ("dp-slice", 0.95)
    assert any("data-parallel rank 1" in reason for reason in one.because)
    assert "--dp-size 1" in one.next_step


@pytest.mark.parametrize(
    ("source", "cause"), [("r0", "dp-slice"), ("r3", "buffer-reuse|read-early|verify-dropped")]
)
def test_one_trace_shows_a_slice_where_rows_are_copies_from_another_rank(source, cause):
    made = verified(records(6, disagg=False))
    copies = {"sources": [{"request": source, "rows": [PROMPT, PROMPT + 2]}]}
    rows = (PROMPT, PROMPT + 2)
    stale = Finding("stale-rows", "warning", "", 8, request="r1", rows=rows, region="output", evidence=copies)
    (one,) = diagnose_check([ranked_trace(made)], [stale]).diagnoses
    assert one.cause == cause


def test_the_same_on_the_first_rank_or_in_a_run_of_one_rank_is_no_slice():
    made = verified(records(6, disagg=False))
    good = trace(records(6, disagg=False), disagg=False, path="b.h5")
    first = [replace(record, dp_rank=1 - record.dp_rank) for record in sliced(made)]
    assert "dp-slice" not in diff_causes(ranked_trace(first), good)
    alone = [replace(record, dp_rank=0) for record in sliced(made)]
    assert "dp-slice" not in diff_causes(trace(alone, disagg=False, dp_size=1, draft="ngram"), good)


def test_a_diagnosis_says_on_which_rank_all_of_it_is():
    made = verified(records(4, disagg=False))
    zero = [replace(r, **(zeroed(slice(None))(r, n) if n % 2 else {})) for n, r in enumerate(made)]
    report = check_report([ranked_trace(zero)])
    (one,) = report.diagnoses
    assert {finding.evidence["dp_rank"] for finding in report.findings} == {1}
    assert "all of it on data-parallel rank 1, none on 1 other rank" in one.because
