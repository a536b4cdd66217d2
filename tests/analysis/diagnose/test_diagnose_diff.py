"""Causes that the comparison with a baseline shows: each for its own geometry, and for no other."""

from dataclasses import replace

import numpy as np
import pytest
from analysis.compare.logitpairs import logit_pair
from analysis.diagnose.faultytraces import (
    DECODE,
    FACTS,
    PROMPT,
    baseline,
    overwritten_by_next_step,
    records,
    spoiled,
    trace,
    zeroed,
)

from moeinspect.analysis.compare import diff_report
from moeinspect.trace.schema import Origin

RNG_SEED = 5


def causes(a, b=None):
    return [one.cause for one in diff_report(a, baseline() if b is None else b).diagnoses]


def random_ids(shape, seed=RNG_SEED):
    """Valid cells [*shape, 4] that have nothing to do with the right ones."""
    rng = np.random.default_rng(seed)
    return rng.permuted(np.tile(np.arange(FACTS.num_experts), (*shape, 1)), axis=-1)[..., :4]


def random_layers(layers, rows=slice(None)):
    def change(record, number):
        ids = record.expert_ids.copy()
        n = len(ids[rows])
        ids[rows, layers] = np.moveaxis(random_ids((len(layers), n), number), 0, 1)
        return {"expert_ids": ids}

    return change


def test_a_healthy_run_equals_its_baseline_and_has_no_diagnosis():
    for disagg in (True, False):
        report = diff_report(trace(records(disagg=disagg), disagg=disagg), baseline())
        assert (report.verdict, report.diagnoses) == ("clean", ())


def test_zero_prompts_keep_the_cause_that_one_trace_shows():
    assert causes(spoiled(zeroed(slice(0, PROMPT)))) == ["skip-finalize-prefill"]


def test_certain_layers_near_chance_are_draft_capture():
    bad = spoiled(random_layers([1, 2]), draft="builtin:tiny-draft")
    (one,) = diff_report(bad, baseline()).diagnoses
    assert one.cause == "draft-capture"
    assert one.confidence >= 0.9
    assert any("layers 1-2" in reason for reason in one.because)
    assert "--draft none" in one.next_step
    assert "sglang#26980" in one.reference


def test_without_a_draft_or_in_all_layers_it_is_not_draft_capture():
    assert causes(spoiled(random_layers([1, 2]))) == ["unknown"]
    everywhere = spoiled(random_layers([0, 1, 2, 3]), draft="builtin:tiny-draft")
    assert "draft-capture" not in causes(everywhere)


def test_a_layer_that_is_off_by_one_expert_is_not_draft_capture():
    def one_expert(record, number):
        ids = record.expert_ids.copy()
        for row in ids[:, 2]:
            row[3] = np.setdiff1d(np.arange(32), row)[0]
        return {"expert_ids": ids}

    assert "draft-capture" not in causes(spoiled(one_expert, draft="builtin:tiny-draft"))


def test_rows_of_the_next_step_are_buffer_reuse():
    for disagg in (True, False):
        bad = trace(overwritten_by_next_step(records(disagg=disagg)), disagg=disagg)
        (one,) = diff_report(bad, baseline()).diagnoses
        assert one.cause == "buffer-reuse"
        assert one.confidence >= 0.9
        assert any("step + 1" in reason for reason in one.because)
        assert "--no-overlap" in one.next_step


def test_part_of_the_rows_is_enough_for_buffer_reuse():
    good = records()
    late = overwritten_by_next_step(good)
    flaky = [late[0], good[1], late[2], good[3]]
    assert causes(trace(flaky)) == ["buffer-reuse"]


def test_without_overlap_it_is_not_buffer_reuse_and_without_steps_it_is_less_sure():
    late = overwritten_by_next_step(records())
    assert "buffer-reuse" not in causes(trace(late, overlap=False))
    unknown = [replace(r, origin=np.full(len(r.origin), Origin.IMPORTED, np.uint8)) for r in late]
    told, (guessed,) = (diff_report(trace(made), baseline()).diagnoses for made in (late, unknown))
    assert guessed.cause == "buffer-reuse"
    assert guessed.confidence < told[0].confidence


def test_random_rows_are_not_buffer_reuse():
    assert "buffer-reuse" not in causes(spoiled(random_layers([0, 1, 2, 3])))


def test_a_constant_shift_from_the_first_row_on_is_a_row_shift_and_not_buffer_reuse():
    def shift(record, number):
        return {"expert_ids": np.roll(record.expert_ids, -1, axis=0)}

    assert causes(spoiled(shift, disagg=False)) == ["row-shift"]


def test_a_shift_that_starts_at_the_seam_is_a_misaligned_merge():
    def shift(record, number):
        ids = record.expert_ids.copy()
        ids[PROMPT:] = ids[PROMPT - 2 : -2].copy()
        return {"expert_ids": ids}

    assert causes(spoiled(shift)) == ["merge-misaligned"]


def test_stale_prompts_that_nobody_computed_are_no_merge():
    def stale(record, number):
        ids = record.expert_ids.copy()
        ids[:PROMPT] = random_ids((PROMPT, 4), number)
        prompt = np.arange(len(ids)) < PROMPT
        return {
            "expert_ids": ids,
            "worker": np.full(len(ids), DECODE, np.uint16),
            "step": np.where(prompt, -1, record.step).astype(np.int32),
        }

    assert causes(spoiled(stale)) == ["no-merge"]


def test_stale_prompts_of_the_prefill_worker_are_skip_finalize_prefill():
    bad = spoiled(random_layers([0, 1, 2, 3], slice(0, PROMPT)))
    assert causes(bad) == ["skip-finalize-prefill"]
    assert causes(spoiled(random_layers([0, 1, 2, 3], slice(0, PROMPT)), disagg=False)) == ["unknown"]


def test_output_rows_of_a_tree_draft_are_tree_rows():
    bad = random_layers([0, 1, 2, 3], slice(PROMPT + 2, PROMPT + 7))
    assert causes(spoiled(bad, draft="builtin:tiny-draft", draft_topk=4)) == ["tree-rows"]
    assert "tree-rows" not in causes(spoiled(bad))


def test_a_cached_prefix_that_is_wrong_is_a_stale_slot():
    def cached(record, number):
        return random_layers([0, 1, 2, 3], slice(0, 12))(record, number) | {"cached_tokens": 12}

    assert causes(spoiled(cached, disagg=False)) == ["stale-slot"]


def test_swapped_layers_are_a_layer_shift():
    def swap(record, number):
        ids = record.expert_ids.copy()
        ids[:, 1:] = record.expert_ids[:, :-1]
        return {"expert_ids": ids}

    assert causes(spoiled(swap)) == ["layer-shift"]


def test_rounding_is_numerics_and_its_evidence_counts_the_near_ties():
    a, b = logit_pair(noise=0.01, dtype="bfloat16", slot_order="unknown")
    (one,) = diff_report(a, b).diagnoses
    assert (one.cause, one.confidence) == ("numerics", 0.9)
    assert any("near-tie" in reason for reason in one.because)


def test_a_tolerated_share_is_numerics_without_confidence():
    bad = spoiled(random_layers([2], slice(4, 5)))
    report = diff_report(bad, baseline(), max_mismatch=0.1)
    assert report.verdict == "numerics"
    assert [(d.cause, d.confidence) for d in report.diagnoses] == [("numerics", 0.4)]


@pytest.mark.parametrize("wrong_before", [False, True])
def test_other_tokens_are_tokens_diverged_and_less_surely_so_after_other_rows(wrong_before):
    def change(record, number):
        tokens = record.output_ids.copy()
        tokens[5] += 1
        more = random_layers([0, 1, 2, 3], slice(3, 9))(record, number) if wrong_before else {}
        return {"output_ids": tokens} | more

    found = {one.cause: one.confidence for one in diff_report(spoiled(change), baseline()).diagnoses}
    assert found["tokens-diverged"] == (0.5 if wrong_before else 0.9)


def test_a_mismatch_without_a_pattern_is_unknown_and_says_where_it_is():
    (one,) = diff_report(spoiled(random_layers([0, 1, 3], slice(3, 30, 7))), baseline()).diagnoses
    assert one.cause == "unknown"
    assert "of prompt rows" in one.because[0]


def test_the_names_of_the_injected_faults_change_nothing():
    bad = spoiled(random_layers([1, 2]), draft="builtin:tiny-draft")
    lying = replace(bad, run=replace(bad.run, injected_faults=("no-merge",)))
    assert diff_report(bad, baseline()) == diff_report(lying, baseline())
