from dataclasses import replace

from analysis.rules.shorthand import findings, notes
from analysis.tracefactory import make_facts, make_record, make_records, make_trace

from moeinspect.trace.schema import FinishReason, RequestRecord, Validity

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


def test_without_a_sampled_token_the_last_prompt_row_may_be_there_and_its_absence_is_noted():
    fed = make_record("a", range(10), range(1), FACTS)
    fed.output_ids = fed.output_ids[:0]
    trace = make_trace([fed], FACTS)
    assert len(fed.expert_ids) == 10
    assert not findings(trace)
    assert not notes(trace)
    short = make_trace([with_rows(fed, 9)], FACTS)
    assert not findings(short)
    assert [(f.rule, f.rows) for f in notes(short)] == [("missing-rows", (9, 10))]
    assert findings(make_trace([with_rows(fed, 8)], FACTS))[0].rows == (8, 9)


def test_a_one_token_request_that_was_never_fed_is_clean():
    assert not findings(make_trace([make_record("a", [1], [], FACTS)], FACTS))


def test_a_later_sample_is_told_apart_in_the_evidence():
    first = make_record("a", range(10), range(5), FACTS)
    second = replace(with_rows(first, 0), sample=1)
    assert findings(make_trace([first, second], FACTS))[0].evidence["sample"] == 1
