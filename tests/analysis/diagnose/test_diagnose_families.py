"""Causes of runs with drafts, graphs, caches, opt-outs and weight updates: each for its own geometry only."""

from dataclasses import replace

import numpy as np
import pytest
from analysis.diagnose.faultytraces import (
    FACTS,
    OUTPUT,
    PROMPT,
    baseline,
    first_rows,
    overwritten_by_next_step,
    records,
    spoiled,
    trace,
    zeroed,
)
from analysis.diagnose.test_diagnose_diff import causes, random_layers
from analysis.tracefactory import make_records

from moeinspect.analysis.check import check_report
from moeinspect.analysis.compare import diff_report
from moeinspect.trace.schema import Origin, Validity

DRAFT = "builtin:tiny-draft"
ALL = [0, 1, 2, 3]
STRANGE = [[0, 9, 17, 30], [4, 2, 19, 8], [30, 1, 7, 3], [11, 12, 5, 29]]


def first_cause(a):
    return causes(a)[0]


def decoded_only(layers):
    """Random layers in the rows of decode steps."""
    return random_layers(layers, slice(PROMPT, None))


def test_draft_layers_in_replayed_steps_only_are_a_late_opt_out():
    assert causes(spoiled(decoded_only([1, 2]), draft=DRAFT, graph=True)) == ["draft-optout-late"]
    assert causes(spoiled(decoded_only([1, 2]), draft=DRAFT, graph=False)) == ["draft-capture"]
    everywhere = spoiled(random_layers([1, 2]), draft=DRAFT, graph=True)
    assert causes(everywhere) == ["draft-capture|draft-optout-late"]


@pytest.mark.parametrize(
    ("backend", "cause"),
    [
        ("torch", "draft-capture"),
        ("bypass", "bypass-drops-flag|draft-capture|ungated-backend"),
        ("triton", "draft-capture|ungated-backend"),
    ],
)
def test_the_backend_says_which_guard_of_the_draft_may_be_missing(backend, cause):
    assert causes(spoiled(random_layers([1, 2]), draft=DRAFT, backend=backend)) == [cause]


def test_draft_layers_of_prompts_with_hardly_an_output_are_no_prompt_that_was_lost():
    def cut(record, number):
        return first_rows(record, PROMPT + (number == 0), outputs=1 + (number == 0))

    good = [cut(record, number) for number, record in enumerate(records(disagg=False))]
    base = trace(good, disagg=False, overlap=False, path="b.h5")
    for layers, cause in (([1, 2], "draft-capture"), (ALL, "skip-finalize-prefill")):
        made = [cut(replace(r, **random_layers(layers)(r, n)), n) for n, r in enumerate(records())]
        report = diff_report(trace(made, draft=DRAFT, backend="torch"), base)
        assert [one.cause for one in report.diagnoses] == [cause]


def test_an_ngram_draft_has_no_layers_that_could_be_captured():
    assert "draft-capture" not in causes(spoiled(random_layers([1, 2]), draft="ngram"))


def held_by_one_row(rows, source):
    """A change that puts row `source` of each request under the tokens of `rows`."""

    def change(record, number):
        ids = record.expert_ids.copy()
        ids[rows] = ids[source]
        return {"expert_ids": ids}

    return change


def test_one_row_under_all_decoded_tokens_is_a_static_buffer():
    static = held_by_one_row(slice(PROMPT, None), -1)
    assert first_cause(spoiled(static, graph=True)) == "graph-static-rows"
    assert "graph-static-rows" not in causes(spoiled(static, graph=False))


def padding(record, number):
    ids = record.expert_ids.copy()
    ids[16:21] = STRANGE
    return {"expert_ids": ids}


def test_one_strange_row_in_prefill_steps_is_padding():
    assert first_cause(spoiled(padding, graph=True)) == "padded-rows"
    assert "padded-rows" not in causes(spoiled(padding, graph=False))


def test_the_last_row_of_padding_is_told_although_a_single_row_repeats_nothing():
    def one_row(record, number):
        return {"expert_ids": padding(record, number)["expert_ids"]} if number == 1 else {}

    def cut(record, number):
        ids = record.expert_ids.copy()
        if number == 1:
            ids[16] = STRANGE
        return {"expert_ids": ids}

    assert first_cause(spoiled(one_row, graph=True)) == "padded-rows"
    report = diff_report(spoiled(cut, graph=True), baseline())
    assert (report.diagnoses[0].cause, report.diagnoses[0].confidence) == ("padded-rows", 0.5)


def test_tails_of_zeros_and_of_former_owners_are_read_early():
    good = records()

    def tail(record, number):
        ids = record.expert_ids.copy()
        ids[-1] = 0 if number % 2 else good[number - 1].expert_ids[5]
        return {"expert_ids": ids}

    assert causes(spoiled(tail)) == ["read-early"]
    assert "read-early" not in causes(spoiled(tail, overlap=False))


def test_what_differs_in_some_layers_alone_or_where_tokens_diverge_is_no_tail():
    last_row = slice(-1, None)
    assert causes(spoiled(random_layers(ALL, last_row))) == ["read-early"]
    assert "read-early" not in causes(spoiled(random_layers([1, 3], last_row)))

    def ends_elsewhere(record, number):
        tokens = record.output_ids.copy()
        tokens[-4:] += 1
        row = slice(len(record.expert_ids) - 5, len(record.expert_ids) - 4)
        return random_layers(ALL, row)(record, number) | {"output_ids": tokens}

    assert "read-early" not in causes(spoiled(ends_elsewhere))


def test_short_outputs_of_a_tree_are_the_trees_and_not_early_reads():
    def two_steps(record, number):
        step = record.step.copy()
        step[PROMPT:] = step[PROMPT] + np.arange(len(step) - PROMPT) // 8
        return random_layers(ALL, slice(PROMPT, None))(record, number) | {"step": step}

    tree = {"draft": DRAFT, "draft_topk": 2}
    assert "read-early" not in causes(spoiled(two_steps, **tree))
    assert first_cause(spoiled(random_layers(ALL, slice(-2, None)), **tree)) == "read-early"


@pytest.mark.parametrize(
    ("switches", "cause"),
    [
        ({"draft": DRAFT, "draft_topk": 2}, "draft-forward-end|read-early|tree-rows"),
        ({"draft": "ngram", "draft_topk": 2}, "read-early|tree-rows"),
        ({"draft": DRAFT, "dp_size": 2}, "dp-slice|read-early"),
        ({"draft": DRAFT}, "read-early"),
        ({}, "read-early"),
    ],
)
def test_a_few_strange_last_rows_may_be_of_rejected_tokens_where_there_are_any(switches, cause):
    def last_of_one(record, number):
        return random_layers(ALL, slice(-1, None))(record, number) if number == 1 else {}

    assert first_cause(spoiled(last_of_one, **switches)) == cause


def test_lost_rows_of_a_last_verify_step_are_read_early_and_no_dropped_result():
    def two_verify_steps(lost):
        def change(record, number):
            n = len(record.expert_ids)
            origin, step, ids = record.origin.copy(), record.step.copy(), record.expert_ids.copy()
            origin[PROMPT:], step[PROMPT:] = Origin.VERIFY, np.where(np.arange(PROMPT, n) < n - 4, 20, 21)
            ids[lost(step)] = 0
            return {"origin": origin, "step": step, "expert_ids": ids}

        return spoiled(change, draft=DRAFT)

    assert first_cause(two_verify_steps(lambda step: step == 21)) == "read-early"
    assert first_cause(two_verify_steps(lambda step: step >= 20)) == "verify-dropped"


def test_outputs_that_are_zero_throughout_come_of_logits_that_are_no_numbers():
    def token(value):
        def change(record, number):
            return {"output_ids": np.full_like(record.output_ids, value)}

        return spoiled(change)

    assert first_cause(token(0)) == "nan-logits"
    assert causes(token(7)) == ["tokens-diverged"]


def test_outputs_of_zeros_and_of_former_owners_are_a_dropped_verify_result():
    def dropped(record, number):
        if number % 2:
            return zeroed(slice(PROMPT, None))(record, number)
        return random_layers(ALL, slice(PROMPT, None))(record, number)

    assert causes(spoiled(dropped, draft=DRAFT)) == ["verify-dropped"]


def verified(change):
    """A change of rows of verify steps that accept three tokens each; all requests run in one batch."""

    def spoil(record, number):
        position = np.arange(len(record.expert_ids))
        output = position >= PROMPT
        step = np.where(output, 90 + (position - PROMPT) // 3, record.step).astype(np.int32)
        origin = np.where(output, Origin.VERIFY, record.origin).astype(np.uint8)
        ids = record.expert_ids.copy()
        rows = change(number, position - PROMPT)
        random = random_layers(ALL)(record, number)["expert_ids"]
        ids[rows & output] = random[rows & output]
        return {"step": step, "origin": origin, "expert_ids": ids}

    return spoil


def test_a_tree_keeps_the_first_row_of_each_step_and_another_layout_does_not():
    tree = verified(lambda number, offset: offset % 3 == 2)
    layout = verified(lambda number, offset: (offset % 3 == 2) | (number > 0))
    good = records()

    def of_others(record, number):
        made = layout(record, number)
        moved = np.flatnonzero((made["expert_ids"] != record.expert_ids).any(axis=(1, 2)))[::2]
        other = good[number - 1].expert_ids
        made["expert_ids"][moved] = other[np.minimum(moved, len(other) - 1)]
        return made

    assert causes(spoiled(tree, draft=DRAFT, draft_topk=2)) == ["tree-rows"]
    assert causes(spoiled(of_others, draft=DRAFT, draft_topk=2)) == ["draft-forward-end"]
    assert causes(spoiled(layout, draft=DRAFT, draft_topk=2)) == ["draft-capture|draft-forward-end"]
    assert causes(spoiled(layout, draft=DRAFT, draft_topk=2, overlap=False)) == ["tree-rows"]


def drafted(change, rows=slice(None)):
    """What `change` does, and a draft's choices in two layers of these rows."""

    def spoil(record, number):
        fields = change(record, number)
        return fields | random_layers([1, 2], rows)(replace(record, **fields), number)

    return spoil


@pytest.mark.parametrize("overlap", [True, False])
def test_a_draft_over_a_tree_is_one_fault_in_its_layers_and_in_a_layout_of_its_own(overlap):
    layout = verified(lambda number, offset: (offset % 3 == 2) | (number > 2))
    tree = {"draft": DRAFT, "draft_topk": 2, "overlap": overlap}
    replayed = drafted(layout, slice(PROMPT, None))
    for change, graph, cause in (
        (replayed, True, "draft-optout-late"),
        (drafted(layout), False, "draft-capture"),
        (drafted(layout), True, "draft-capture|draft-optout-late"),
    ):
        report = diff_report(spoiled(change, graph=graph, **tree), baseline())
        assert [one.cause for one in report.diagnoses] == [cause]
        assert report.diagnoses[0].explains == report.counts["set_mismatch_cells"]


def stored_elsewhere(record, number):
    """Half the outputs are another request's of the same step, one first row is right, the rest of nobody."""
    ids, position = record.expert_ids.copy(), np.arange(len(record.expert_ids))
    ids[PROMPT:] = records()[(number + 1) % 4].expert_ids[PROMPT:]
    ids[position >= PROMPT + 9] = random_layers(ALL)(record, number)["expert_ids"][position >= PROMPT + 9]
    if number == 0:
        ids[PROMPT : PROMPT + 3] = record.expert_ids[PROMPT : PROMPT + 3]
    return verified(lambda number, offset: offset < 0)(record, number) | {"expert_ids": ids}


def test_rows_of_a_step_stored_elsewhere_are_the_drafts_where_its_layers_are_its_own():
    tree = {"draft": DRAFT, "draft_topk": 2, "graph": True}
    replayed = drafted(stored_elsewhere, slice(PROMPT, None))
    assert causes(spoiled(replayed, **tree)) == ["draft-optout-late"]
    assert causes(spoiled(stored_elsewhere, **tree)) == ["draft-forward-end"]


def test_a_tree_that_was_not_compacted_beside_a_draft_is_a_second_fault():
    tree = verified(lambda number, offset: offset % 3 == 2)
    assert causes(spoiled(drafted(tree), draft=DRAFT, draft_topk=2)) == ["draft-capture", "tree-rows"]


def test_one_request_at_a_time_cannot_tell_a_tree_from_another_layout():
    tree = verified(lambda number, offset: offset % 3 == 2)
    bad = spoiled(lambda r, n: tree(r, n) if n == 1 else {}, draft=DRAFT, draft_topk=2)
    assert causes(bad) == ["draft-forward-end|tree-rows"]


def test_rows_that_a_prefill_computed_again_do_not_hide_a_dropped_verify_result():
    def recomputed(record, number):
        position = np.arange(len(record.expert_ids))
        verified = position >= PROMPT + (6 if number % 2 else 0)
        ids = record.expert_ids.copy()
        ids[verified] = 0 if number != 2 else random_layers(ALL)(record, number)["expert_ids"][verified]
        origin = np.where(verified, Origin.VERIFY, Origin.PREFILL).astype(np.uint8)
        return {"expert_ids": ids, "origin": origin}

    bad = spoiled(recomputed, draft=DRAFT, disagg=False)
    assert causes(bad) == ["verify-dropped"]
    assert [one.cause for one in check_report([bad]).diagnoses] == ["verify-dropped"]


def test_layers_without_any_id_in_a_run_with_a_draft_are_a_capturer_of_another_shape():
    def cut(record, number):
        ids = record.expert_ids.copy()
        ids[:, 2:] = FACTS.sentinel
        return {"expert_ids": ids}

    assert first_cause(spoiled(cut, draft=DRAFT)) == "draft-recreates-capturer"
    assert first_cause(spoiled(cut)) == "partial-sentinel"

    def beside_one_without_rows(record, number):
        nothing = {
            "expert_ids": np.full_like(record.expert_ids, FACTS.sentinel),
            "validity": np.full_like(record.validity, Validity.MISSING),
        }
        return cut(record, number) if number else nothing

    bad = spoiled(beside_one_without_rows, draft=DRAFT, not_opted_in=[["r0", 0]])
    assert first_cause(bad) == "draft-recreates-capturer"


def test_outputs_of_one_or_two_verify_steps_were_dropped_if_other_requests_end_right():
    def verified(record, number):
        if number % 2 == 0:
            return first_rows(record, PROMPT, outputs=1)
        record = first_rows(record, PROMPT + 3, outputs=4)
        ids = record.expert_ids.copy()
        ids[PROMPT:] = 0 if number == 1 else random_layers(ALL)(record, number)["expert_ids"][PROMPT:]
        origin = np.where(np.arange(PROMPT + 3) < PROMPT, Origin.PREFILL, Origin.VERIFY).astype(np.uint8)
        step = np.append(record.step[:PROMPT], [90, 90, 91]).astype(np.int32)
        return replace(record, expert_ids=ids, origin=origin, step=step)

    made = [verified(r, n) for n, r in enumerate(records(4, disagg=False))]
    good = [
        replace(r, expert_ids=h.expert_ids[: len(r.expert_ids)])
        for r, h in zip(made, records(4, disagg=False), strict=True)
    ]
    right = trace(good, disagg=False, path="b.h5")
    assert causes(trace(made, disagg=False, draft=DRAFT), right) == ["verify-dropped"]
    ends = good[0].expert_ids.copy()
    ends[-8:] = 0
    made[0] = replace(made[0], expert_ids=ends)
    assert "read-early" in causes(trace(made, disagg=False, draft=DRAFT), right)


def test_a_cached_prefix_of_zeros_is_a_stale_slot():
    def cached(record, number):
        change = zeroed(slice(0, 12))(record, number) if number % 2 else {}
        other = random_layers(ALL, slice(0, 12))(record, number) if number % 2 == 0 else {}
        origin = record.origin.copy()
        origin[:12] = Origin.PREFIX_CACHE
        return {"cached_tokens": 12, "origin": origin} | change | other

    bad = spoiled(cached, disagg=False, host_kv_slots=64)
    assert causes(bad) == ["stale-slot"]
    assert [one.cause for one in check_report([bad]).diagnoses] == ["stale-slot"]


def test_output_rows_that_their_worker_never_computed_are_a_seam_out_of_place():
    def joined(size):
        def change(record, number):
            ids, step = record.expert_ids.copy(), record.step.copy()
            ids[PROMPT : PROMPT + size] = 0
            ids[PROMPT + size :] = record.expert_ids[PROMPT:-size]
            step[PROMPT : PROMPT + size] = -1
            return {"expert_ids": ids, "step": step}

        return change

    for size in (1, 5):
        bad = spoiled(joined(size))
        assert causes(bad) == ["merge-misaligned"]
        assert [one.cause for one in check_report([bad]).diagnoses] == ["merge-misaligned"]
    assert "merge-misaligned" not in causes(spoiled(zeroed(slice(PROMPT, None)), draft=DRAFT))


def prefilled_in_chunks(output_len, count=3, prompt_len=64, chunk=8):
    """Requests that prefill one after another in equal chunks and then decode all together."""
    made = []
    for number, record in enumerate(make_records(FACTS, count, prompt_len=prompt_len, output_len=output_len)):
        position = np.arange(len(record.expert_ids))
        decoded = position >= prompt_len
        step = number * (prompt_len // chunk) + position // chunk
        step = np.where(decoded, count * (prompt_len // chunk) + position - prompt_len, step)
        origin = np.where(decoded, Origin.DECODE, Origin.PREFILL).astype(np.uint8)
        made.append(replace(record, step=step.astype(np.int32), origin=origin))
    return made


def later_by(lag):
    def change(record):
        ids = record.expert_ids.copy()
        ids[:-lag] = record.expert_ids[lag:]
        return replace(record, expert_ids=ids)

    return change


def test_a_buffer_that_equal_chunks_overwrite_is_no_shift_and_a_shift_is_no_buffer():
    few = prefilled_in_chunks(5)
    base = trace(few, disagg=False, overlap=False, path="b.h5")
    assert first_of(trace(overwritten_by_next_step(few), disagg=False), base) == "buffer-reuse"
    good = prefilled_in_chunks(21)
    base = trace(good, disagg=False, overlap=False, path="b.h5")
    for lag in (1, 8):
        shifted = trace([later_by(lag)(record) for record in good], disagg=False)
        assert first_of(shifted, base) == "row-shift"


def first_of(bad, base):
    return diff_report(bad, base).diagnoses[0].cause


@pytest.mark.parametrize("draft", [DRAFT, None])
def test_rows_of_rejected_tokens_do_not_hide_a_buffer_that_was_overwritten(draft):
    random = random_layers(ALL)

    def rejected(record, number):
        ids = record.expert_ids.copy()
        lost = np.arange(len(ids)) % 3 > 0
        ids[lost] = random(record, number)["expert_ids"][lost]
        return replace(record, expert_ids=ids)

    reused = [rejected(r, n) for n, r in enumerate(overwritten_by_next_step(records(disagg=False)))]
    found = causes(trace(reused, disagg=False, draft=draft))
    assert (found == ["buffer-reuse"]) == (draft is not None)


@pytest.mark.parametrize("graph", [True, False])
def test_outputs_too_short_to_repeat_are_static_rows_where_prefill_steps_are_spared(graph):
    made = overwritten_by_next_step([first_rows(r, PROMPT + 2, outputs=3) for r in records(disagg=False)])
    good = [first_rows(r, PROMPT + 2, outputs=3) for r in records(disagg=False)]
    late = [
        replace(r, expert_ids=np.concatenate([g.expert_ids[:PROMPT], r.expert_ids[PROMPT:]]))
        for r, g in zip(made, good, strict=True)
    ]
    base = trace(good, disagg=False, overlap=False, path="b.h5")
    first = diff_report(trace(late, disagg=False, graph=graph), base).diagnoses[0].cause
    assert first == ("graph-static-rows" if graph else "buffer-reuse")


def test_rows_of_other_requests_where_some_did_not_ask_are_an_index_swap():
    made = records(8)
    asked = [record for number, record in enumerate(made) if number % 2]
    listed = [["r" + str(number), 0] for number in range(0, 8, 2)]
    swapped = []
    for number, record in enumerate(made):
        if number % 2 == 0:
            record = replace(record, validity=np.full(len(record.validity), Validity.MISSING, np.uint8))
        elif number < len(asked):
            record = replace(record, expert_ids=asked[number].expert_ids)
        else:
            record = replace(record, validity=np.full(len(record.validity), Validity.MISSING, np.uint8))
        swapped.append(record)
    bad = trace(swapped, disagg=False, not_opted_in=listed)
    good = trace(records(8, disagg=False), disagg=False, overlap=False, path="b.h5", not_opted_in=listed)
    report = diff_report(bad, good)
    assert report.diagnoses[0].cause == "batch-index-swap"
    assert any("got none" in reason for reason in report.diagnoses[0].because)


def test_rows_of_who_did_not_ask_are_an_index_swap_and_their_number_says_nothing():
    """As where only the decode side mixes its answers up: prompts right, outputs others', lengths odd."""
    made, missing = records(8), np.full(PROMPT + OUTPUT - 1, Validity.MISSING, np.uint8)
    listed = [["r0", 0], ["r1", 0], ["r4", 0]]
    swapped = list(made)
    swapped[0] = first_rows(made[0], PROMPT, outputs=OUTPUT)
    swapped[2] = replace(
        made[2], expert_ids=np.concatenate([made[2].expert_ids[:PROMPT], made[3].expert_ids[PROMPT:]])
    )
    for number in (1, 3, 4):
        swapped[number] = replace(made[number], validity=missing)
    bad = trace(swapped, not_opted_in=listed)
    good = trace(records(8, disagg=False), disagg=False, overlap=False, path="b.h5", not_opted_in=listed)
    for found in (diff_report(bad, good).diagnoses, check_report([bad]).diagnoses):
        one = found[0]
        assert (one.cause, one.confidence) == ("batch-index-swap", 0.95)
        assert any("1 of 3 requests that did not ask for rows hold" in reason for reason in one.because)
    everybody = check_report([trace(swapped, not_opted_in=[["r9", 0]])]).diagnoses
    assert "batch-index-swap" not in [one.cause for one in everybody]


def test_recomputed_rows_of_older_weights_are_rerouted():
    def updated(record, number):
        version = (np.arange(len(record.expert_ids)) >= PROMPT + 6).astype(np.uint16)
        fields = {"num_retractions": 1, "num_weight_versions": 2, "row_weight_version": version}
        return fields | random_layers(ALL, slice(0, PROMPT + 6))(record, number)

    bad = replace(spoiled(updated, disagg=False), weight_versions=("old", "new"))
    (one,) = diff_report(bad, baseline()).diagnoses
    assert one.cause == "retract-reroute"
    assert any("first computed under older weights" in reason for reason in one.because)
    kept = replace(spoiled(lambda r, n: {"num_retractions": 1}), weight_versions=("old", "new"))
    assert diff_report(kept, baseline()).verdict == "clean"


def test_filler_is_told_by_itself_and_not_taken_for_routing():
    def numberless(record, number):
        ids = record.expert_ids.copy()
        ids[:, 1:] = np.arange(FACTS.top_k)
        return {"expert_ids": ids, "output_ids": np.zeros_like(record.output_ids)}

    assert first_cause(spoiled(numberless, disagg=False)) == "nan-logits"
