"""Two layers that hold the same ids everywhere."""

import numpy as np
import pytest
from analysis.toymodel import ToyStyle, toy_trace
from analysis.tracefactory import make_facts, make_records, make_trace

from moeinspect.analysis.rules import check_trace
from moeinspect.trace.transport.layers import aliased_prediction_layers


def found(trace):
    return [f for f in check_trace(trace).findings if f.rule == "equal-layers"]


def random_trace(experts=32, top_k=4, layers=5, *, rows=40, exempt=(), run=None):
    facts = make_facts(layers, experts, top_k, exempt=exempt)
    return make_trace(make_records(facts, 4, prompt_len=rows // 2, output_len=rows // 2), facts, run=run)


@pytest.mark.parametrize("experts", [32, 60, 128, 384])
def test_a_layer_that_was_read_twice_is_named_with_the_first(experts):
    (finding,) = found(aliased_prediction_layers(random_trace(experts)))
    assert finding.layers == (0, 4) and finding.severity == "warning"
    assert finding.count == 4 * 39
    assert finding.evidence["chance_log10"] < -9


def test_one_other_row_is_enough_for_two_layers():
    trace = aliased_prediction_layers(random_trace())
    trace.rows.expert_ids[-1, 4] = trace.rows.expert_ids[-1, 4][::-1]
    assert found(trace) == []


def test_rows_that_other_rules_count_are_not_looked_at():
    trace = aliased_prediction_layers(random_trace())
    trace.rows.expert_ids[7, 4] = 0
    (finding,) = found(trace)
    assert finding.evidence["rows"] == 4 * 39 - 1


def test_zero_layers_are_no_equal_layers():
    trace = random_trace()
    trace.rows.expert_ids[:, [1, 3]] = 0
    assert found(trace) == []


def test_exempt_layers_may_be_equal():
    assert found(aliased_prediction_layers(random_trace(exempt=(4,)))) == []


def test_few_experts_are_no_proof_in_few_rows():
    trace = aliased_prediction_layers(random_trace(8, 2, 5, rows=8))
    assert found(trace) == []


def test_few_experts_are_proof_where_all_other_layers_part_in_many_situations():
    (finding,) = found(aliased_prediction_layers(random_trace(8, 2, 5, rows=120)))
    assert finding.layers == (0, 4)


def test_few_experts_are_no_proof_if_another_layer_goes_along_under_other_names():
    trace = aliased_prediction_layers(random_trace(8, 2, 5, rows=120))
    trace.rows.expert_ids[:, 2] = np.roll(np.arange(8), 3)[trace.rows.expert_ids[:, 0]]
    assert found(trace) == []


def test_an_order_that_means_nothing_is_no_proof():
    few = {"rows": 8, "experts": 13, "layers": 2}
    assert len(found(aliased_prediction_layers(random_trace(**few)))) == 1
    assert found(aliased_prediction_layers(random_trace(**few, run={"slot_order": "sorted"}))) == []


@pytest.mark.parametrize(("experts", "top_k", "layers"), [(8, 1, 4), (8, 2, 8), (16, 4, 4), (60, 4, 2)])
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_healthy_models_have_no_equal_layers(experts, top_k, layers, noise):
    facts = make_facts(layers, experts, top_k)
    trace = toy_trace(facts, ToyStyle(class_noise=noise, context=noise, classes=6), top_k, 3)
    assert found(trace) == []
