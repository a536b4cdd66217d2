"""Shifts, slices, cut prompts and replays without effect are named, and rounding hides none of them."""

from dataclasses import replace

import numpy as np
import pytest
from analysis.tracefactory import make_facts, make_trace, random_record

from moeinspect.analysis.check import check_report
from moeinspect.analysis.compare import diff_report
from moeinspect.trace.schema import Origin
from moeinspect.trace.transport import TRANSPORT_FAULTS
from moeinspect.trace.transport.imported import imported
from moeinspect.trace.transport.records import records_of, trace_of
from moeinspect.trace.transport.replay import flipped, replay_without_effect
from moeinspect.trace.transport.truncation import prompts_truncated

FACTS = make_facts(8, 32, 4, moe_layers=range(1, 8))
LENGTHS = ((31, 9), (12, 14), (24, 7), (40, 8), (18, 11))
RUN = {"deterministic": False, "run_config": {"disagg": False, "overlap": True, "draft": None}}


def made():
    rng = np.random.default_rng(0)
    records = []
    slot = 0
    for number, (prompt, output) in enumerate(LENGTHS):
        record = random_record(
            f"r{number}", FACTS, rng, prompt_len=prompt, output_len=output, first_slot=slot
        )
        decoded = record.origin == Origin.DECODE
        record.step[:] = np.where(decoded, len(LENGTHS) + np.cumsum(decoded), number)
        records.append(record)
        slot += len(record.expert_ids)
    return make_trace(records, FACTS, run=RUN)


HEALTHY = made()


def with_noise(trace, rate=0.08, seed=1):
    rng, axis = np.random.default_rng(seed), np.arange(len(trace.model.moe_layers))
    rates = np.linspace(0.3, 1.7, len(axis)) * rate
    records = [flipped(record, axis, rates, trace.model.num_experts, rng) for record in records_of(trace)]
    return replace(trace_of(trace, records), path="noisy.h5")


NOISY = with_noise(HEALTHY)


def causes(report):
    return [one.cause for one in report.diagnoses]


CASES = [
    ("layer-shift", "all-as-moe"),
    ("layer-shift", "moe-as-all-drop"),
    ("layer-shift", "offset-down-repeat"),
    ("row-shift", "+1-zero"),
    ("row-shift", "-7-repeat"),
    ("row-shift", "-1-repeat-some"),
    ("row-shift", "+1-zero-lost"),
    ("row-shift", "-1-zero-prompt"),
    ("cp-slice", "ranks-2"),
    ("cp-slice", "unzigzagged-8"),
    ("cp-slice", "striped-4"),
    ("cp-slice", "unstriped-2"),
    ("cp-slice", "first-rank-4"),
    ("cp-slice", "multiple-2"),
    ("cp-slice", "multiple-4"),
    ("cp-slice", "pack"),
    ("cp-slice", "pack-late"),
    ("cp-slice", "pack-multiple"),
    ("prompt-truncated", "whole"),
    ("prompt-truncated", "tail-deep"),
    ("replay-noop", "everywhere"),
    ("replay-noop", "upper-layers"),
]


@pytest.mark.parametrize(("fault", "variant"), CASES)
def test_the_cause_is_named_alone_and_first_with_and_without_noise(fault, variant):
    changed = TRANSPORT_FAULTS[fault].shapes[variant](HEALTHY, np.random.default_rng(3))
    assert causes(diff_report(changed, HEALTHY))[0] == fault
    assert causes(diff_report(imported(changed) if fault != "replay-noop" else changed, NOISY))[0] == fault


def test_noise_alone_is_none_of_them():
    assert causes(diff_report(HEALTHY, NOISY)) == ["unknown"]
    assert causes(diff_report(imported(HEALTHY), imported(NOISY))) == ["unknown"]


def test_a_prompt_that_was_cut_with_its_rows_is_clean_in_either_order():
    cut = prompts_truncated(HEALTHY, 20, "cut")
    for pair in ((cut, HEALTHY), (HEALTHY, cut)):
        report = diff_report(*pair)
        assert report.verdict == "clean"
        assert [f.evidence["tokens"] for f in report.findings if f.rule == "cut-prompt"] == [11, 4, 20]


def test_another_run_with_a_longer_prompt_is_another_text():
    record = records_of(HEALTHY)[3]
    other = replace(record, prompt_ids=record.prompt_ids[10:], expert_ids=(record.expert_ids + 7) % 32)
    report = diff_report(trace_of(HEALTHY, [*records_of(HEALTHY)[:3], other]), HEALTHY)
    assert "cut-prompt" not in {f.rule for f in report.findings}
    assert "token-mismatch" in {f.rule for f in report.findings}


def test_rows_of_tokens_that_both_traces_lack_are_a_cut_prompt():
    whole, cut = prompts_truncated(HEALTHY, 25, "tail"), prompts_truncated(HEALTHY, 25, "cut")
    assert causes(diff_report(whole, cut)) == ["prompt-truncated"]


def test_a_replay_is_not_excused_by_a_noise_floor_and_not_suspected_unless_stated():
    rng = np.random.default_rng(5)
    trained, again = (replay_without_effect(HEALTHY, 0.05, rng, stated=False) for _ in range(2))
    assert "replay-noop" not in causes(diff_report(trained, HEALTHY))
    assert diff_report(trained, HEALTHY, again).verdict == "numerics"
    stated = replace(trained, run=replace(trained.run, run_config={"router_replay": {"mode": "R3"}}))
    report = diff_report(stated, HEALTHY, again)
    assert (report.verdict, causes(report)) == ("findings", ["replay-noop"])
    assert any("without replay" in reason for reason in report.diagnoses[0].because)
    assert causes(diff_report(stated, HEALTHY, max_mismatch=0.5))[0] == "replay-noop"
    for run in ({"engine": "sglang"}, {"run_config": {"router_replay": {"mode": "disabled"}}}):
        other = replace(stated, run=replace(stated.run, **run))
        assert "replay-noop" not in causes(diff_report(other, HEALTHY, again))


def test_one_trace_tells_a_layer_axis_that_was_misread():
    facts = make_facts(10, 32, 4, moe_layers=(1, 2, 3, 5, 6, 8, 9))
    rng = np.random.default_rng(0)
    trace = make_trace([random_record(f"r{n}", facts, rng) for n in range(3)], facts)
    changed = TRANSPORT_FAULTS["layer-shift"].shapes["all-as-moe"](trace, rng)
    (found,) = check_report([imported(changed)]).diagnoses
    assert found.cause == "layer-shift"
    assert "whose number among these is a dense layer's index" in found.because[-1]


def test_one_trace_tells_rows_that_outnumber_the_tokens_of_the_longest_prompts():
    changed = prompts_truncated(HEALTHY, 20, "whole")
    (found,) = check_report([imported(changed)]).diagnoses
    assert found.cause == "prompt-truncated"
    alone = prompts_truncated(HEALTHY, 35, "whole")
    (found,) = check_report([imported(alone)]).diagnoses
    assert found.cause == "double-concat|prompt-truncated|surplus-after-stop"
