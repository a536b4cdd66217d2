"""Layers and rows that are read at another place."""

import numpy as np
import pytest
from analysis.tracefactory import make_facts, make_records, make_trace

from moeinspect.trace.transport import NoEffectError
from moeinspect.trace.transport.axes import (
    layers_counted_as_all,
    layers_counted_as_moe,
    layers_offset,
    rows_shifted,
)


def trace_on(axis, moe=(1, 2, 4, 5), **options):
    facts = make_facts(6, 16, 4, layer_axis=axis, moe_layers=moe)
    return make_trace(make_records(facts, 3, **options), facts)


def moe_ids(trace):
    """Ids [R, M, K] of the MoE layers, whatever the axis."""
    return trace.rows.expert_ids[:, np.isin(trace.axis_layers(), trace.model.moe_layers)]


@pytest.mark.parametrize("axis", ["all", "moe"])
def test_a_moe_layer_reads_the_layer_whose_absolute_index_is_its_own_number(axis):
    trace = trace_on(axis)
    changed, right = moe_ids(layers_counted_as_moe(trace)), moe_ids(trace)
    assert not changed[:, 0].any()  # layer 0 is dense
    assert np.array_equal(changed[:, 1], right[:, 0])  # layer 1
    assert np.array_equal(changed[:, 2], right[:, 1])  # layer 2
    assert not changed[:, 3].any()  # layer 3 is dense


@pytest.mark.parametrize("axis", ["all", "moe"])
def test_an_absolute_index_into_a_payload_of_moe_layers_reads_past_its_end(axis):
    trace = trace_on(axis)
    right = moe_ids(trace)
    for ends in ("zero", "repeat", "drop"):
        changed = layers_counted_as_all(trace, ends)
        ids = moe_ids(changed)
        assert np.array_equal(ids[:, 0], right[:, 1])
        assert np.array_equal(ids[:, 1], right[:, 2])
        if ends == "drop":
            assert changed.model.moe_layers == (1, 2)
        else:
            assert np.array_equal(ids[:, 2], right[:, 3] if ends == "repeat" else np.zeros_like(right[:, 3]))


def test_a_model_without_dense_layers_shows_nothing():
    trace = trace_on("moe", moe=range(6))
    for change in (layers_counted_as_moe, lambda one: layers_counted_as_all(one, "zero")):
        with pytest.raises(NoEffectError, match="layer-shift does nothing here"):
            change(trace)
    assert np.array_equal(moe_ids(layers_offset(trace, 2, "zero"))[:, :4], moe_ids(trace)[:, 2:])


@pytest.mark.parametrize("lag", [-3, 1])
def test_rows_are_those_of_the_lag_and_the_end_is_filled_as_asked(lag):
    trace = trace_on("moe")
    own = trace.row_range(1)
    right, n = trace.rows.expert_ids[own], own.stop - own.start
    held = slice(max(0, -lag), n - max(0, lag))
    source = slice(max(0, lag), n - max(0, -lag))
    empty = slice(n - lag, n) if lag > 0 else slice(0, -lag)
    for ends in ("zero", "repeat"):
        got = rows_shifted(trace, lag, ends).rows.expert_ids[own]
        assert np.array_equal(got[held], right[source])
        wanted = np.zeros_like(right[empty]) if ends == "zero" else right[[-1 if lag > 0 else 0] * abs(lag)]
        assert np.array_equal(got[empty], wanted)
    dropped = rows_shifted(trace, lag, "drop")
    assert (dropped.requests.num_rows == trace.requests.num_rows - abs(lag)).all()


def test_only_the_prompt_or_only_some_requests_are_shifted():
    trace = trace_on("moe", prompt_len=12, output_len=9)
    prompt = rows_shifted(trace, 1, "repeat", "prompt")
    differs = (prompt.rows.expert_ids != trace.rows.expert_ids).any(axis=(1, 2)).reshape(3, 20)
    assert differs[:, :11].all()
    assert not differs[:, 12:].any()
    some = rows_shifted(trace, 1, "zero", share=0.3)
    assert (some.rows.expert_ids != trace.rows.expert_ids).any(axis=(1, 2)).reshape(3, 20).any(
        axis=1
    ).sum() == 1


def test_requests_as_short_as_the_shift_cannot_show_it():
    with pytest.raises(NoEffectError, match="no request has more than"):
        rows_shifted(trace_on("moe", prompt_len=2, output_len=2), 5, "zero")
