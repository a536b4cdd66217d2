"""Layers that get the rows of another one."""

import numpy as np
import pytest
from analysis.tracefactory import make_facts, make_records, make_trace

from moeinspect.trace.transport import NoEffectError
from moeinspect.trace.transport.layers import aliased_prediction_layers

FACTS = make_facts(6, 16, 4, layer_axis="all", moe_layers=(1, 2, 4, 5))


def healthy():
    return make_trace(make_records(FACTS, 3), FACTS)


def test_the_last_moe_layers_hold_the_first_ones():
    trace = healthy()
    alias = aliased_prediction_layers(trace, depth=2)
    assert np.array_equal(alias.rows.expert_ids[:, [4, 5]], trace.rows.expert_ids[:, [1, 2]])
    assert np.array_equal(alias.rows.expert_ids[:, :4], trace.rows.expert_ids[:, :4])


def test_layers_that_the_engine_does_not_know_are_added():
    trace = healthy()
    alias = aliased_prediction_layers(trace, added=True)
    assert alias.model.moe_layers == (1, 2, 4, 5, 6) and alias.model.num_hidden_layers == 7
    assert np.array_equal(alias.rows.expert_ids[:, 6], trace.rows.expert_ids[:, 1])
    assert np.array_equal(alias.rows.expert_ids[:, :6], trace.rows.expert_ids)


def test_one_layer_cannot_be_its_own_alias():
    facts = make_facts(1, 16, 4)
    with pytest.raises(NoEffectError, match="mtp-alias does nothing here"):
        aliased_prediction_layers(make_trace(make_records(facts, 2), facts))
