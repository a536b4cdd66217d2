from dataclasses import replace

import pytest
from analysis.rules.shorthand import findings, notes
from analysis.tracefactory import make_facts, make_record, make_records, make_trace

from moeinspect.trace.schema import FinishReason, Origin, RequestRecord, Validity

FACTS = make_facts()
ROWS = ("expert_ids", "validity", "origin", "worker", "step", "slot", "row_weight_version")


def with_rows(record: RequestRecord, count: int) -> RequestRecord:
    """The first `count` rows, or more by saying that tokens are fewer."""
    return replace(record, **{name: getattr(record, name)[:count] for name in ROWS})


def one(record: RequestRecord):
    found = findings(make_trace([*make_records(FACTS, 1, seed=9), record], FACTS))
    assert len(found) == 1
    return found[0]


def test_absent_rows_are_a_missing_request_counted_in_rows():
    record = with_rows(make_record("a", range(10), range(5), FACTS), 0)
    finding = one(record)
    assert (finding.rule, finding.severity, finding.request) == ("missing-request", "error", "a")
    assert (finding.rows, finding.count, finding.layers, finding.region) == ((0, 14), 14, (), "both")


def test_rows_that_are_all_declared_missing_are_a_missing_request():
    record = make_record("a", range(10), range(5), FACTS)
    record.validity[:] = Validity.MISSING
    assert one(record).rule == "missing-request"


def test_some_rows_declared_missing_are_only_noted():
    record = make_record("a", range(10), range(5), FACTS)
    record.validity[2:5] = Validity.MISSING
    trace = make_trace([record], FACTS)
    assert not findings(trace)
    assert [(f.rule, f.count, f.evidence["reason"]) for f in notes(trace)] == [
        ("not-checked", 3, "declared-missing")
    ]


def test_missing_rows_are_the_last_ones_before_the_last_token():
    finding = one(with_rows(make_record("a", range(10), range(5), FACTS), 12))
    assert (finding.rule, finding.rows, finding.count, finding.region) == (
        "missing-rows",
        (12, 14),
        2,
        "output",
    )


def test_a_start_position_shortens_what_is_expected():
    record = make_record("a", range(10), range(5), FACTS, start_pos=4)
    assert not findings(make_trace([record], FACTS))
    assert one(with_rows(record, 5)).rows == (5, 10)
    assert one(with_rows(record, 5)).region == "both"


def test_surplus_rows_stand_beyond_the_fed_tokens_and_are_not_checked_otherwise():
    record = make_record("a", range(10), range(5), FACTS)
    record.output_ids = record.output_ids[:3]
    record.expert_ids[12:] = 0
    finding = one(record)
    assert (finding.rule, finding.rows, finding.count) == ("surplus-rows", (12, 14), 2)


def test_an_aborted_request_without_rows_is_only_noted():
    record = with_rows(make_record("a", range(10), range(5), FACTS), 0)
    trace = make_trace([replace(record, finish_reason=FinishReason.ABORT)], FACTS)
    assert not findings(trace)
    assert [f.rule for f in notes(trace)] == ["missing-request"]


def prefill_only(prompt_len=10):
    fed = make_record("a", range(prompt_len), range(1), FACTS)
    fed.output_ids = fed.output_ids[:0]
    return fed


def test_without_a_sampled_token_every_prompt_token_has_a_row():
    trace = make_trace([prefill_only()], FACTS)
    assert len(trace.rows) == 10
    assert not findings(trace)
    assert not notes(trace)
    assert one(with_rows(prefill_only(), 9)).rows == (9, 10)
    assert one(with_rows(prefill_only(), 8)).rows == (8, 10)


@pytest.mark.parametrize("run", [{"engine": "sglang"}, {}])
def test_an_engine_that_promises_one_row_less_gets_a_note_for_the_last_prompt_row(run):
    def answered(count, prompt_len=10):
        record = with_rows(prefill_only(prompt_len), count)
        if not run:
            record.origin[:] = Origin.IMPORTED
        return make_trace([record, with_rows(prefill_only(), count)], FACTS, run=run)

    assert not findings(answered(10))
    assert not notes(answered(10))
    assert not findings(answered(9))
    assert {(f.rule, f.rows, "prefill-only-short" in f.message) for f in notes(answered(9))} == {
        ("missing-rows", (9, 10), True)
    }
    assert findings(answered(8))[0].rows == (8, 10)


def test_a_prompt_of_one_token_has_one_row_even_if_nothing_was_sampled():
    assert not findings(make_trace([prefill_only(1)], FACTS))
    short = with_rows(prefill_only(1), 0)
    assert one(short).rule == "missing-request"
    assert not findings(make_trace([short], FACTS, run={"engine": "sglang"}))


def test_a_request_that_did_not_ask_for_its_rows_is_noted_and_one_of_another_sample_is_not():
    first = make_record("a", range(10), range(5), FACTS)
    first.validity[:] = Validity.MISSING
    second = replace(first, sample=1)
    config = {"not_opted_in": [["a", 0], ["b", 7]]}
    trace = make_trace([first, second], FACTS, run={"run_config": config})
    assert [f.evidence["sample"] for f in findings(trace)] == [1]
    assert ("missing-request", True) in {(f.rule, "did not ask" in f.message) for f in notes(trace)}


@pytest.mark.parametrize("listed", ["a", {"a": 0}, [["a"]], [["a", True]], ["a", 0], None])
def test_a_list_of_requests_in_another_form_excuses_nobody(listed):
    record = make_record("a", range(10), range(5), FACTS)
    record.validity[:] = Validity.MISSING
    assert findings(make_trace([record], FACTS, run={"run_config": {"not_opted_in": listed}}))


def test_a_later_sample_is_told_apart_in_the_evidence():
    first = make_record("a", range(10), range(5), FACTS)
    second = replace(with_rows(first, 0), sample=1)
    assert findings(make_trace([first, second], FACTS))[0].evidence["sample"] == 1
