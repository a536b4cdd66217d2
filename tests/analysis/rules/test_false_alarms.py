"""Healthy traces that look suspicious must be clean: uneven routers, few experts, loops, shared texts."""

import numpy as np
import pytest
from analysis.rules.shorthand import findings
from analysis.toymodel import ToyStyle, toy_trace
from analysis.tracefactory import make_facts, make_records, make_trace

SHAPES = [(2, 1, 1), (4, 1, 2), (4, 2, 1), (4, 4, 1), (8, 1, 2), (8, 2, 2), (8, 4, 2), (8, 8, 2), (16, 4, 3)]
"""Experts, top-k, layers."""

STYLES = {
    "plain": ToyStyle(),
    "uneven": ToyStyle(skew=3.0),
    "alike tokens": ToyStyle(classes=5, class_noise=0.05),
    "no context": ToyStyle(context=0.0, vocab=40),
    "mostly context": ToyStyle(context=3.0, memory=0.98),
    "all alike": ToyStyle(common=3.0, skew=2.0),
}


@pytest.mark.quick(30)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(("experts", "top_k", "layers"), SHAPES)
def test_a_toy_model_is_clean(experts, top_k, layers, style):
    facts = make_facts(layers, experts, top_k)
    for seed in range(2):
        trace = toy_trace(facts, STYLES[style], seed, reuse_slots=bool(seed % 2))
        assert findings(trace) == []


@pytest.mark.parametrize("skew", [0.0, 1.0, 2.0, 4.0])
@pytest.mark.parametrize(("experts", "top_k", "layers"), SHAPES)
def test_independent_rows_of_zipf_experts_are_clean(experts, top_k, layers, skew):
    facts = make_facts(layers, experts, top_k)
    records = make_records(facts, 6, skew=skew, prompt_len=60, output_len=20, vocab=50)
    assert findings(make_trace(records, facts)) == []


@pytest.mark.parametrize("context", [1, 2, 4])
def test_rows_that_depend_on_the_last_tokens_alone_are_clean(context):
    for experts, top_k, layers in SHAPES:
        facts = make_facts(layers, experts, top_k)
        records = make_records(facts, 6, prompt_len=50, vocab=6, context=context)
        assert findings(make_trace(records, facts)) == []


def test_toy_models_do_hold_equal_rows_under_different_tokens():
    """Else the tests above would say little."""
    facts = make_facts(2, 8, 2)
    trace = toy_trace(facts, STYLES["alike tokens"], 0)
    rows = trace.rows.expert_ids.reshape(len(trace.rows), -1)
    tokens = np.concatenate([trace.tokens_of(i)[:-1] for i in range(len(trace.requests))])
    equal = (rows[1:] == rows[:-1]).all(axis=1) & (tokens[1:] != tokens[:-1])
    assert equal.mean() > 0.05
