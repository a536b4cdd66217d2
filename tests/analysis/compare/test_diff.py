"""The report of two traces: verdicts, findings, counts and statistics."""

from dataclasses import replace

import numpy as np
import pytest
from analysis.tracefactory import make_facts, make_record, make_records, make_trace

from moeinspect.analysis.compare import diff_report
from moeinspect.trace.schema import FinishReason, Origin

FACTS = make_facts(4, 16, 4)


def healthy(count=3, facts=FACTS, **options):
    return make_trace(make_records(facts, count, **options), facts)


def with_ids(trace, change):
    ids = trace.rows.expert_ids.copy()
    change(ids)
    return replace(trace, rows=replace(trace.rows, expert_ids=ids))


def other_set(trace, rows, layers):
    """`trace` with one expert of each of these cells replaced."""

    def change(ids):
        for row in rows:
            for layer in layers:
                ids[row, layer, 0] = np.setdiff1d(np.arange(16), ids[row, layer])[0]

    return with_ids(trace, change)


def rules(report, severity=None):
    return [f.rule for f in report.findings if severity in (None, f.severity)]


def only(report, rule):
    return [f for f in report.findings if f.rule == rule]


def test_a_trace_equals_itself():
    trace = healthy()
    report = diff_report(trace, trace)
    assert report.verdict == "clean"
    assert not report.findings
    assert not report.diagnoses
    assert report.command == "diff"
    assert report.counts["rows_compared"] == len(trace.rows)
    assert report.counts["cells_compared"] == 4 * len(trace.rows)
    assert report.counts["rows_checked"] == 2 * len(trace.rows)
    assert {(one.compared, one.set_mismatch, one.overlap_mean) for one in report.layers} == {
        (len(trace.rows), 0.0, 1.0)
    }


def test_two_equal_all_zero_traces_are_not_clean():
    zero = with_ids(healthy(), lambda ids: ids.fill(0))
    report = diff_report(zero, zero)
    assert report.verdict == "findings"
    assert {f.input for f in only(report, "zero-layers")} == {0, 1}
    assert report.counts["set_mismatch_cells"] == 0


def test_runs_of_rows_with_the_same_layers_are_merged_and_others_are_not():
    good = healthy()
    bad = other_set(other_set(other_set(good, range(3, 8), [1, 2]), [8], [1]), [45, 47], [0])
    found = only(diff_report(bad, good), "set-mismatch")
    assert [(f.request, f.rows, f.layers, f.count) for f in found] == [
        ("r0", (3, 8), (1, 2), 10),
        ("r0", (8, 9), (1,), 1),
        ("r1", (6, 7), (0,), 1),
        ("r1", (8, 9), (0,), 1),
    ]
    assert [f.region for f in found] == ["prompt"] * 4
    assert {f.severity for f in found} == {"error"}
    assert {f.input for f in found} == {None}


def test_a_run_over_the_end_of_the_prompt_is_in_both_regions():
    good = healthy()
    (found,) = only(diff_report(other_set(good, range(20, 30), [1]), good), "set-mismatch")
    assert (found.rows, found.region) == ((20, 30), "both")
    assert found.evidence["overlap_mean"] == pytest.approx(0.75)
    assert found.evidence["chance_overlap"] == pytest.approx(0.25)
    assert found.evidence["no_common_expert"] == 0


def test_a_run_does_not_reach_into_the_next_request():
    good = healthy(2)
    bad = other_set(good, range(37, 42), [0])
    assert [f.rows for f in only(diff_report(bad, good), "set-mismatch")] == [(37, 39), (0, 3)]


def test_the_first_divergence_is_the_lowest_step_then_position_then_layer():
    good = healthy()
    bad = other_set(other_set(good, [30], [0]), [50, 51], [2, 3])
    evidence = [f.evidence.get("first_divergence") for f in only(diff_report(bad, good), "set-mismatch")]
    assert evidence == [
        None,
        {"position": 11, "layer": 2, "token": int(good.tokens_of(1)[11]), "step": 0, "worker": "unified"},
    ]


def test_the_first_divergence_of_an_import_is_the_lowest_position():
    imported = [
        replace(record, origin=np.full(len(record.expert_ids), Origin.IMPORTED, np.uint8))
        for record in make_records(FACTS, 3)
    ]
    good = make_trace(imported, FACTS)
    bad = other_set(other_set(good, [30], [0]), [50], [2])
    first = [f for f in only(diff_report(bad, good), "set-mismatch") if "first_divergence" in f.evidence]
    assert [(f.request, f.evidence["first_divergence"]["step"]) for f in first] == [("r1", None)]


def test_order_is_compared_only_between_router_orders():
    good = healthy()
    turned = with_ids(good, lambda ids: ids.__setitem__(slice(None), ids[:, :, ::-1].copy()))
    report = diff_report(turned, good)
    assert report.verdict == "findings"
    assert report.layers[0].order_mismatch == 1.0
    assert report.counts["order_mismatch_cells"] == report.counts["cells_compared"]
    assert rules(report, "error") == []
    assert set(rules(report, "warning")) == {"order-mismatch"}
    for order in ("sorted", "unknown"):
        unordered = replace(turned, run=replace(turned.run, slot_order=order))
        quiet = diff_report(unordered, good)
        assert quiet.verdict == "clean"
        assert quiet.layers[0].order_mismatch is None
        assert "order_mismatch_cells" not in quiet.counts


def weighted(trace, weights):
    return replace(trace, rows=replace(trace.rows, weights=weights.astype(np.float32)))


@pytest.mark.parametrize(
    ("machine_key", "step", "verdict"),
    [("factory", 6e-8, "findings"), ("else", 6e-8, "clean"), ("else", 1e-4, "findings")],
)
def test_weights_are_equal_bit_for_bit_on_one_machine_and_within_1e5_elsewhere(machine_key, step, verdict):
    trace = healthy()
    weights = np.full(trace.rows.expert_ids.shape, 0.25)
    moved = weights.copy()
    moved[5, 1, 2] += step
    a, b = weighted(trace, moved), weighted(trace, weights)
    runs = [replace(t.run, run_config={"dtype": "float32"}) for t in (a, b)]
    report = diff_report(replace(a, run=replace(runs[0], machine_key=machine_key)), replace(b, run=runs[1]))
    assert report.verdict == verdict
    assert report.counts["weight_mismatch_cells"] == (verdict == "findings")


def test_weights_of_a_cell_with_another_set_are_not_counted_again():
    trace = healthy()
    weights = np.random.default_rng(0).random(trace.rows.expert_ids.shape)
    a, b = weighted(other_set(trace, [4], [1]), weights + 1), weighted(trace, weights)
    report = diff_report(a, b)
    assert report.counts["set_mismatch_cells"] == 1
    assert report.counts["weight_mismatch_cells"] == report.counts["cells_compared"] - 1
    assert report.counts["cells_flagged"] == report.counts["cells_compared"]


def test_weights_held_by_one_trace_only_are_not_compared():
    trace = healthy()
    report = diff_report(weighted(trace, np.ones(trace.rows.expert_ids.shape)), trace)
    assert report.verdict == "clean"
    assert "weight_mismatch_cells" not in report.counts


def test_what_only_one_trace_has_is_told_from_both_sides():
    records = make_records(FACTS, 3)
    extra = make_record("extra", [1, 2, 3], [4, 5], FACTS)
    late = replace(
        records[1],
        start_pos=4,
        **{
            name: getattr(records[1], name)[4:]
            for name in ("expert_ids", "validity", "origin", "worker", "step", "slot", "row_weight_version")
        },
    )
    a, b = make_trace([*records, extra], FACTS), make_trace([records[0], late], FACTS)
    report = diff_report(a, b)
    assert [(f.request, f.rows, f.count) for f in only(report, "only-in-a")] == [
        ("r1", (0, 4), 4),
        ("r2", (0, 39), 39),
        ("extra", (0, 4), 4),
    ]
    assert [(f.request, f.rows, f.count) for f in only(diff_report(b, a), "only-in-b")] == [
        ("r1", (0, 4), 4),
        ("r2", (0, 39), 39),
        ("extra", (0, 4), 4),
    ]
    assert report.counts["rows_only_in_a"] == 4
    assert report.counts["requests_only_in_a"] == 2
    assert report.verdict == "findings"


def test_rows_that_an_aborted_request_lacks_are_a_note():
    (record,) = make_records(FACTS, 1)
    cut = {
        name: getattr(record, name)[:20]
        for name in ("expert_ids", "validity", "origin", "worker", "step", "slot", "row_weight_version")
    }
    aborted = replace(record, finish_reason=FinishReason.ABORT, **cut)
    report = diff_report(make_trace([aborted], FACTS), make_trace([record], FACTS))
    assert [(f.severity, f.count) for f in only(report, "only-in-b")] == [("note", 19)]
    assert report.verdict == "clean"


def test_rows_that_a_trace_declares_missing_are_not_compared_as_real_ones():
    (record,) = make_records(FACTS, 1)
    gone = record.expert_ids.copy()
    gone[3:5] = 255
    validity = record.validity.copy()
    validity[3:5] = [1, 2]
    report = diff_report(
        make_trace([replace(record, expert_ids=gone, validity=validity)], FACTS), make_trace([record], FACTS)
    )
    assert report.counts["rows_compared"] == 37
    assert report.counts["rows_not_real"] == 2
    assert report.counts["set_mismatch_cells"] == 0
    assert [(f.rule, f.rows) for f in only(report, "only-in-b")] == [("only-in-b", (3, 5))]


def test_tokens_that_part_are_told_at_the_first_difference():
    a, b = (make_record("a", [1, 2, 3], [output, 6, 7], FACTS) for output in (5, 8))
    report = diff_report(make_trace([a], FACTS), make_trace([b], FACTS))
    (found,) = only(report, "token-mismatch")
    assert (found.request, found.rows, found.count, found.region) == ("a", (3, 5), 2, "output")
    assert found.evidence == {"position": 3, "token_a": 5, "token_b": 8}
    assert report.counts["rows_not_comparable"] == 2
    assert report.verdict == "findings"
    assert [d.cause for d in report.diagnoses] == ["tokens-diverged"]


def test_another_last_token_costs_no_row():
    a, b = (make_record("a", [1, 2, 3], [4, output], FACTS) for output in (5, 8))
    report = diff_report(make_trace([a], FACTS), make_trace([b], FACTS))
    (found,) = only(report, "token-mismatch")
    assert (found.rows, found.count) == (None, 0)
    assert report.counts["rows_compared"] == 4


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"num_experts": 17}, "num_experts"),
        ({"fingerprint": "e" * 16}, "fingerprint"),
        ({"moe_layers": (0, 1, 2)}, "moe_layers"),
    ],
)
def test_another_model_is_an_error(change, fact):
    trace = healthy()
    facts = replace(FACTS, layer_axis="all")
    a = replace(trace, model=facts)
    report = diff_report(a, replace(a, model=replace(facts, **change)))
    (found,) = only(report, "model-mismatch")
    assert (found.severity, found.evidence["fact"]) == ("error", fact)
    assert report.verdict == "findings"


@pytest.mark.parametrize("change", [{"architecture": "Other"}, {"fingerprint": ""}, {"name": "other"}])
def test_another_name_or_an_unknown_fingerprint_is_none(change):
    trace = healthy()
    report = diff_report(trace, replace(trace, model=replace(FACTS, **change)))
    assert report.verdict == "clean"


def test_another_top_k_differs_in_every_cell_and_says_why():
    trace = healthy()
    wider = np.concatenate([trace.rows.expert_ids, np.full((len(trace.rows), 4, 1), 15, np.uint8)], axis=2)
    a = replace(trace, model=replace(FACTS, top_k=5), rows=replace(trace.rows, expert_ids=wider))
    report = diff_report(a, trace)
    assert "model-mismatch" in rules(report, "error")
    assert report.counts["set_mismatch_cells"] > 0.7 * report.counts["cells_compared"]
    assert "order_mismatch_cells" not in report.counts


def test_pairs_by_prompt_and_other_machines_are_notes():
    trace = healthy()
    names = np.asarray(["x", "y", "z"])
    other = replace(
        trace,
        requests=replace(trace.requests, id=names),
        run=replace(trace.run, machine_key="else"),
    )
    report = diff_report(trace, other)
    assert report.verdict == "clean"
    assert rules(report, "note") == ["other-machine", "paired-by-prompt"]


def test_exempt_layers_are_compared_only_where_both_captured_them():
    facts = replace(FACTS, capture_exempt_layers=(1,))
    good = make_trace(make_records(facts, 1), facts)
    uncaptured = with_ids(good, lambda ids: ids.__setitem__((slice(0, 10), 1), 0))
    report = diff_report(uncaptured, good)
    assert report.verdict == "clean"
    assert report.counts["cells_exempt"] == 10
    assert [one.compared for one in report.layers] == [39, 29, 39, 39]
    assert diff_report(other_set(good, [3], [1]), good).verdict == "findings"


def test_the_tolerated_share_holds_over_all_and_in_every_layer():
    good = healthy(4)
    rows = len(good.rows)
    spread = good
    for layer in range(4):
        spread = other_set(spread, range(layer * 10, layer * 10 + rows // 20), [layer])
    report = diff_report(spread, good, max_mismatch=0.05)
    assert (report.verdict, report.strict) == ("numerics", False)
    assert diff_report(spread, good, max_mismatch=0.04).verdict == "findings"
    assert diff_report(spread, good, max_mismatch=0.05, strict=True).strict
    one_layer = other_set(good, range(0, rows, 6), [2])
    overall = diff_report(one_layer, good).counts["set_mismatch_cells"] / (4 * rows)
    assert overall < 0.05
    assert diff_report(one_layer, good, max_mismatch=0.05).verdict == "findings"


def test_statistics_are_shares_per_layer_and_region():
    good = healthy(2)
    bad = other_set(good, [*range(24), 30], [1])
    report = diff_report(bad, good)
    one = report.layers[1]
    assert one.set_mismatch == pytest.approx(25 / 78)
    assert one.overlap_mean == pytest.approx(1 - 25 / 78 / 4)
    assert one.extra["chance_overlap"] == pytest.approx(4 / 16)
    assert one.extra["regions"]["prompt"] == {"compared": 48, "set_mismatch": pytest.approx(24 / 48)}
    assert one.extra["regions"]["output"] == {"compared": 30, "set_mismatch": pytest.approx(1 / 30)}
    assert report.counts["prompt_set_mismatch_cells"] == 24
    assert report.counts["output_set_mismatch_cells"] == 1


def test_regions_follow_steps_cached_tokens_and_verify_rows():
    (record,) = make_records(FACTS, 1)
    step = record.step.copy()
    step[8:16], step[16:24] = 1, 2
    origin = record.origin.copy()
    origin[30:34] = Origin.VERIFY
    trace = make_trace([replace(record, step=step, origin=origin, cached_tokens=5)], FACTS)
    regions = diff_report(other_set(trace, [7, 16, 31], [0]), trace).layers[0].extra["regions"]
    assert regions["chunk_boundary"] == {"compared": 4, "set_mismatch": 0.5}
    assert regions["cached_prefix"] == {"compared": 5, "set_mismatch": 0.0}
    assert regions["accepted_draft"] == {"compared": 4, "set_mismatch": 0.25}


def test_findings_come_by_severity_then_request_then_rows():
    good = healthy()
    bad = other_set(good, [2, 50, 90], [1])
    bad = with_ids(bad, lambda ids: ids.__setitem__(60, 0))
    found = diff_report(bad, good).findings
    keys = [
        (["error", "warning", "note"].index(f.severity), f.request or "", f.rows or (0, 0)) for f in found
    ]
    assert keys == sorted(keys)
    assert [f.rule for f in found][-2:] == ["no-margins", "less-evidence"]
    assert len(keys) == 7
