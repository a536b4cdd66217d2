"""Recorded answers of real engines: healthy ones are clean, faulty ones are found."""

import pytest
from analysis.realtraces import oracle_trace, recordings, sglang_trace, vllm_trace
from analysis.rules.shorthand import findings


@pytest.mark.parametrize("name", ["a_det", "b_det", "c_tree_det"])
def test_sglang_answers_are_clean_by_themselves(name):
    """`c_tree_det` has wrong rows, but each is a row that the model computed: only a baseline tells."""
    assert findings(sglang_trace(name)) == []


@pytest.mark.parametrize("name", ["v0.30.0-base", "v0.32.0-e320_uint16"])
def test_vllm_answers_are_clean(name):
    assert findings(vllm_trace(name)) == []


def test_transformers_outputs_are_clean():
    names = sorted(path.stem for path in (recordings() / "oracle" / "expected").glob("*.npz"))
    assert names
    for name in names:
        assert findings(oracle_trace(name)) == [], name


@pytest.mark.parametrize(
    "load", [lambda: sglang_trace("d_ngram"), lambda: vllm_trace("v0.27.1-allzero_bf16")]
)
def test_answers_of_zeros_are_found_in_every_cell(load):
    trace = load()
    found = findings(trace)
    assert {f.rule for f in found} == {"zero-layers"}
    assert {f.request for f in found} == set(trace.requests.id.tolist())
    assert sum(f.count for f in found) == len(trace.rows) * len(trace.model.moe_layers)
