"""Causes read off one trace: each for its own geometry, and for no other."""

import re
from dataclasses import replace

import numpy as np
import pytest
from analysis.diagnose.faultytraces import (
    DECODE,
    PROMPT,
    first_rows,
    foreign,
    records,
    spoiled,
    trace,
    zeroed,
)
from analysis.tracefactory import make_facts, make_records, make_trace

from moeinspect.analysis.check import check_report
from moeinspect.analysis.diagnose import diagnose_check
from moeinspect.analysis.diagnose.catalogue import CAUSES
from moeinspect.analysis.findings import Diagnosis, Finding
from moeinspect.trace.schema import Validity


def diagnoses(*traces) -> tuple[Diagnosis, ...]:
    return check_report(traces).diagnoses


def causes(*traces) -> list[str]:
    return [one.cause for one in diagnoses(*traces)]


def test_a_clean_trace_has_no_diagnosis():
    assert causes(trace(records())) == []


def test_zero_prompts_that_the_prefill_worker_computed_are_skip_finalize_prefill():
    (one,) = diagnoses(spoiled(zeroed(slice(0, PROMPT))))
    assert one.cause == "skip-finalize-prefill"
    assert one.confidence >= 0.9
    assert any("[0, prompt_len)" in reason for reason in one.because)
    assert "sglang#23885" in one.reference
    assert one.next_step.startswith("moeinspect capture builtin:tiny --disagg --no-overlap -o ")


def test_zero_prompts_that_nobody_computed_are_no_merge():
    def change(record, number):
        prompt = np.arange(len(record.expert_ids)) < PROMPT
        return zeroed(slice(0, PROMPT))(record, number) | {
            "worker": np.full(len(prompt), DECODE, np.uint16),
            "step": np.where(prompt, -1, record.step).astype(np.int32),
        }

    (one,) = diagnoses(spoiled(change))
    assert one.cause == "no-merge"
    assert any("decode-0" in reason for reason in one.because)
    assert "--no-disagg" in one.next_step


def test_zero_prompts_of_an_import_are_one_cause_with_both_names():
    (one,) = diagnoses(spoiled(lambda r, n: zeroed(slice(0, PROMPT))(r, n) | foreign(r)))
    assert one.cause == "no-merge|skip-finalize-prefill"
    assert "sglang#23885" in one.reference
    assert "sglang#22916" in one.reference


@pytest.mark.parametrize(
    ("config", "cause"),
    [({"overlap": False}, "no-merge"), ({"disagg": False}, "unknown")],
)
def test_switches_that_a_cause_needs_rule_it_out(config, cause):
    disagg = config.pop("disagg", True)
    made = [replace(r, **zeroed(slice(0, PROMPT))(r, n), **foreign(r)) for n, r in enumerate(records())]
    assert causes(trace(made, disagg=disagg, **config)) == [cause]


def test_zero_prompts_of_the_prefill_worker_without_overlap_are_unknown():
    assert causes(spoiled(zeroed(slice(0, PROMPT)), overlap=False)) == ["unknown"]


def test_zero_prompts_of_requests_with_one_output_token_are_still_prompts():
    made = [first_rows(r, PROMPT, outputs=1) for r in records()]
    made = [replace(r, expert_ids=np.zeros_like(r.expert_ids)) for r in made]
    assert causes(trace(made)) == ["skip-finalize-prefill"]


def test_prompts_that_are_all_there_is_are_everything_where_one_process_runs_them():
    made = [first_rows(r, PROMPT, outputs=1) for r in records(disagg=False)]
    zero = [replace(r, expert_ids=np.zeros_like(r.expert_ids)) for r in made]
    assert causes(trace(zero, disagg=False)) == ["init-order|kernel-uncaptured"]
    assert causes(trace([*zero[:2], *made[2:]], disagg=False)) == ["unknown"]


def test_zero_outputs_are_the_mirror_image_verify_dropped():
    (one,) = diagnoses(spoiled(zeroed(slice(PROMPT, None)), draft="builtin:tiny-draft"))
    assert one.cause == "verify-dropped"
    assert causes(spoiled(zeroed(slice(PROMPT, None)))) == ["read-early"]


def test_zeros_at_the_ends_of_requests_are_read_early():
    assert causes(spoiled(zeroed(slice(-3, None)))) == ["read-early"]


def test_everything_zero_names_the_ways_in_which_nothing_is_stored():
    assert causes(spoiled(zeroed(slice(None)))) == ["init-order|kernel-uncaptured"]
    (cause,) = causes(spoiled(zeroed(slice(None)), draft="ngram"))
    assert cause == "init-order|kernel-uncaptured|verify-dropped"
    assert causes(spoiled(zeroed(slice(None)), draft="ngram", backend="torch")) == [
        "init-order|verify-dropped"
    ]
    assert causes(spoiled(zeroed(slice(None)), draft="builtin:tiny-draft", backend="bypass")) == [
        "init-order|kernel-uncaptured"
    ]


def test_everything_is_zero_where_the_rows_that_were_not_asked_for_are_declared_missing():
    def change(record, number):
        missing = np.full(
            len(record.expert_ids), Validity.MISSING if number == 1 else Validity.REAL, np.uint8
        )
        return {**zeroed(slice(None))(record, number), "validity": missing}

    silent = [[records()[1].id, 0]]
    assert causes(spoiled(change, not_opted_in=silent)) == ["init-order|kernel-uncaptured"]


@pytest.mark.parametrize(
    ("backend", "pp_size", "cause"),
    [
        ("bypass", 1, "kernel-uncaptured"),
        ("bypass", 2, "kernel-uncaptured|pp-stage"),
        ("torch", 2, "pp-stage"),
        ("torch", 1, "unknown"),
    ],
)
def test_all_layers_but_the_hash_routed_are_those_of_a_kernel_or_of_other_stages(backend, pp_size, cause):
    zero = zeroed(slice(None), [2, 3])
    bad = spoiled(zero, disagg=False, backend=backend, pp_size=pp_size, hash_layers=[0, 1])
    assert causes(bad) == [cause]


def test_zeros_that_end_with_the_first_weights_are_layers_that_were_built_too_early():
    def of_first_weights(record, _):
        versions = (np.arange(len(record.expert_ids)) >= 7).astype(np.uint16)
        ids = np.where(versions[:, None, None] == 0, 0, record.expert_ids)
        return {"expert_ids": ids, "row_weight_version": versions}

    (one,) = diagnoses(spoiled(of_first_weights))
    assert one.cause == "init-order" and one.confidence >= 0.8


def test_a_zero_layer_by_itself_is_named_once():
    def one_layer(record, number):
        ids = record.expert_ids.copy()
        ids[:, 1] = 0
        return {"expert_ids": ids}

    report = check_report([spoiled(one_layer, pp_size=1)])
    told = [reason for one in report.diagnoses for reason in one.because if "zero in every row" in reason]
    assert len(report.diagnoses) == len(told) == 1
    assert re.match(r"MoE layer \d+ is zero in every row of all ", told[0])


def test_zero_layers_are_read_by_where_they_stand():
    assert causes(spoiled(zeroed(slice(None), [0]))) == ["pp-stage"]
    assert causes(spoiled(zeroed(slice(None), [2, 3]))) == ["pp-stage"]
    assert causes(spoiled(zeroed(slice(None), [1, 3]))) == ["unknown"]


def test_scattered_zeros_are_unknown():
    def change(record, number):
        ids = record.expert_ids.copy()
        ids[[[3, 30], [0, 2, 3], [-2, -1]][number % 3]] = 0
        return {"expert_ids": ids}

    (one,) = diagnoses(spoiled(change))
    assert (one.cause, one.confidence < 0.5) == ("unknown", True)


def test_missing_and_surplus_rows():
    def cut(record, number):
        fields = ("validity", "origin", "worker", "step", "slot", "row_weight_version", "expert_ids")
        return {name: getattr(record, name)[:-2] for name in fields}

    def double(record, number):
        fields = ("validity", "origin", "worker", "step", "slot", "row_weight_version", "expert_ids")
        return {name: np.concatenate([getattr(record, name)] * 2) for name in fields}

    def more(record, number):
        changed = double(record, number)
        n = len(record.expert_ids)
        changed["expert_ids"][n:] = np.roll(record.expert_ids, 7, axis=0)
        return changed

    assert causes(spoiled(cut)) == ["prompt-truncated|read-early|turn-gap"]
    assert causes(spoiled(double))[0] == "double-concat"
    assert "double-concat|surplus-after-stop" in causes(spoiled(more))
    assert "surplus-after-stop" in causes(spoiled(more, draft="builtin:tiny-draft"))


def test_ids_beyond_the_experts():
    def renamed(record, number):
        ids = record.expert_ids.copy()
        ids[:, 2] = np.where(ids[:, 2] == 5, 40, ids[:, 2])
        return {"expert_ids": ids}

    assert causes(spoiled(renamed)) == ["physical-ids"]


def test_an_id_cliff_is_a_wrapped_uint8():
    facts = make_facts(4, 512, 8)
    wrapped = [
        replace(r, expert_ids=r.expert_ids % 256)
        for r in make_records(facts, 10, prompt_len=40, output_len=40)
    ]
    assert "uint8-wrap" in causes(make_trace(wrapped, facts))


def test_whole_requests_of_others_are_an_index_swap():
    made = records()
    made[1] = replace(made[1], expert_ids=made[0].expert_ids)
    assert causes(trace(made)) == ["batch-index-swap"]


def test_two_inputs_with_one_cause_give_one_diagnosis():
    bad = spoiled(zeroed(slice(0, PROMPT)))
    assert causes(bad, bad) == ["skip-finalize-prefill"]
    assert causes(trace(records()), bad) == ["skip-finalize-prefill"]


def test_notes_are_no_reason_for_a_diagnosis():
    note = Finding("missing-rows", "note", "aborted", 3, input=0, request="r0")
    assert diagnose_check([trace(records())], [note]).diagnoses == ()


def test_the_names_of_the_injected_faults_change_nothing():
    bad = spoiled(zeroed(slice(0, PROMPT)))
    lying = replace(bad, run=replace(bad.run, injected_faults=("draft-capture",)))
    assert check_report([bad]) == check_report([lying])


def test_every_cause_says_what_to_do_next():
    assert all(cause.engine for cause in CAUSES.values())
    assert {"numerics", "tokens-diverged", "unknown"} <= CAUSES.keys()


def test_an_engine_that_is_not_local_gets_words_instead_of_a_command():
    bad = spoiled(zeroed(slice(0, PROMPT)))
    (one,) = diagnoses(replace(bad, run=replace(bad.run, engine="sglang")))
    assert "--disable-overlap-schedule" in one.next_step
    assert "moeinspect" not in one.next_step


def test_an_unknown_cause_of_a_local_run_is_narrowed_down_by_the_first_feature_that_is_on():
    def next_step(**config):
        return diagnoses(spoiled(zeroed(slice(None), [1, 3]), **config))[0].next_step

    assert "--draft none" in next_step(draft="builtin:tiny-draft")
    assert "--no-disagg" in next_step()
    assert "--no-overlap" in next_step(disagg=False)
    assert "one after another" in next_step(disagg=False, overlap=False)


def test_the_next_command_repeats_the_run_but_for_the_switch():
    (one,) = diagnoses(
        spoiled(zeroed(slice(0, PROMPT)), draft="builtin:tiny-draft", chunked_prefill_size=8, weights=True)
    )
    command, look = one.next_step.split(" && ")
    assert command == (
        "moeinspect capture builtin:tiny --chunked-prefill-size 8 --disagg --draft builtin:tiny-draft "
        "--weights --no-overlap -o a-no-overlap.h5"
    )
    assert look == "moeinspect diff a-no-overlap.h5"


def test_zeros_everywhere_stay_everywhere_where_some_requests_have_rows_of_one_kind_only():
    made = records()
    made[0] = first_rows(made[0], PROMPT, outputs=1)
    zeros = [replace(r, expert_ids=np.zeros_like(r.expert_ids)) for r in made]
    assert causes(trace(zeros)) == ["init-order|kernel-uncaptured"]
    made = records()
    prompts = [first_rows(made[0], PROMPT, outputs=1), *made[1:]]
    zeros = [replace(r, **zeroed(slice(0, PROMPT))(r, n)) for n, r in enumerate(prompts)]
    assert causes(trace(zeros)) == ["skip-finalize-prefill"]
