"""The note on evidence that a trace lacks: once, and only where a cause is unsure for want of it."""

from dataclasses import fields, replace

import numpy as np
import pytest
from analysis.diagnose.faultytraces import PROMPT, baseline, foreign, records, spoiled, trace, zeroed

from moeinspect.analysis.check import check_report
from moeinspect.analysis.compare import diff_report
from moeinspect.analysis.diagnose.catalogue import CAUSES
from moeinspect.analysis.diagnose.evidence import NEEDS, ROWS, RULE, SLOTS, less_evidence
from moeinspect.analysis.diagnose.facts import RunFacts, run_facts
from moeinspect.analysis.findings import Diagnosis


def notes(report):
    return [finding for finding in report.findings if finding.rule == RULE]


def zero_prompts(**config):
    """Prompts of zeros in answers that tell neither workers nor slots."""
    made = [replace(r, **zeroed(slice(0, PROMPT))(r, n), **foreign(r)) for n, r in enumerate(records())]
    return trace(made, **config)


def without_config(one):
    return replace(one, run=replace(one.run, run_config={}, engine="sglang"))


@pytest.mark.parametrize("report_of", [check_report, lambda one: diff_report(*one, baseline())])
def test_an_unsure_cause_of_foreign_answers_names_what_is_missing_and_what_it_takes(report_of):
    report = report_of([without_config(zero_prompts())])
    (note,) = notes(report)
    assert (report.verdict, note.severity, note.count, report.findings[-1]) == ("findings", "note", 0, note)
    assert note.evidence == {
        "causes": ["no-merge", "skip-finalize-prefill"],
        "missing": ["disagg", "overlap", "rows"],
    }
    for part in ("disaggregation and overlap", "server's arguments", "worker, step and origin", "capture`"):
        assert part in note.message


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("sglang", ("disaggregation_mode and disable_overlap_schedule", "server_args")),
        ("vllm", ("kv_transfer_config and async_scheduling", "non-default args")),
    ],
)
def test_switches_are_asked_for_in_the_words_of_the_engine(engine, words):
    one = without_config(zero_prompts())
    (note,) = notes(check_report([replace(one, run=replace(one.run, engine=engine))]))
    assert all(part in note.message for part in words)
    (unknown,) = notes(check_report([replace(one, run=replace(one.run, engine="another"))]))
    assert not any(part in unknown.message for part in words)
    assert "server's arguments; a trace keeps them in run_config" in unknown.message


@pytest.mark.parametrize("arguments", [{}, {"enable_return_routed_experts": True}])
@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_nothing_that_the_trace_tells_is_asked_for(engine, arguments):
    """Every cause at once: only what `RunFacts` do not know is missing, and nothing that no one can tell."""
    one = zero_prompts()
    one = replace(one, run=replace(one.run, engine=engine, run_config=arguments))
    (note,) = less_evidence([one], [Diagnosis("|".join(NEEDS), 0.1, (), "", "")])
    facts, missing = run_facts(one), set(note.evidence["missing"])
    assert missing - {ROWS, SLOTS} <= {
        field.name for field in fields(RunFacts) if getattr(facts, field.name) is None
    }
    assert {"draft", "disagg", "tp_size"} & missing == (
        set() if arguments else {"draft", "disagg", "tp_size"}
    )
    assert ("mixed_opt_in" in missing) == (engine == "sglang")


def test_what_the_trace_does_hold_is_not_asked_for():
    (note,) = notes(check_report([zero_prompts()]))
    assert note.evidence["missing"] == ["rows"]


def test_several_traces_get_one_note():
    assert len(notes(check_report([zero_prompts(), zero_prompts()]))) == 1


def test_a_sure_cause_gets_none_however_much_is_missing():
    def change(record, number):
        ids = record.expert_ids.astype(np.int64)
        ids[3:6, 1] = -1
        return {"expert_ids": ids} | foreign(record)

    report = check_report([without_config(spoiled(change))])
    assert [one.cause for one in report.diagnoses] == ["partial-sentinel"]
    assert notes(report) == []


def test_an_unsure_cause_that_is_read_off_the_rows_alone_gets_none():
    def change(record, number):
        ids = record.expert_ids.copy()
        ids[:, 3] = ids[:, 2]
        return {"expert_ids": ids} | foreign(record)

    report = diff_report(without_config(spoiled(change)), baseline())
    assert [one.cause for one in report.diagnoses] == ["layer-shift|mtp-alias"]
    assert notes(report) == []


def test_a_local_trace_lacks_nothing_of_its_rows():
    report = check_report([spoiled(zeroed(slice(0, PROMPT)), overlap=False)])
    assert [one.cause for one in report.diagnoses] == ["unknown"]
    (note,) = notes(report)
    assert note.evidence["missing"] == ["graph"]


def test_a_clean_trace_gets_none():
    assert check_report([without_config(trace(records()))]).findings == ()


def test_needs_are_switches_that_facts_know_and_causes_that_the_catalogue_knows():
    assert set(NEEDS) <= set(CAUSES)
    assert {need for needs in NEEDS.values() for need in needs} <= {
        ROWS,
        SLOTS,
        *(field.name for field in fields(RunFacts)),
    }
