"""Ids that lost their upper bits."""

import numpy as np
from analysis.tracefactory import make_facts, make_records, make_trace

from moeinspect.trace.schema import Validity
from moeinspect.trace.transport import apply_transport_fault


def test_ids_keep_their_lowest_eight_bits():
    facts = make_facts(layers=4, experts=384, layer_axis="all", moe_layers=(1, 2))
    trace = make_trace(make_records(facts), facts)
    trace.rows.validity[5] = Validity.MISSING
    trace.rows.expert_ids[5] = facts.sentinel
    wrapped = apply_transport_fault("uint8-wrap", trace).rows
    kept = trace.rows.expert_ids % 256
    kept[:, [0, 3]] = kept[5] = facts.sentinel
    assert np.array_equal(wrapped.expert_ids, kept)
    assert wrapped.expert_ids.dtype == np.uint16
    assert np.array_equal(wrapped.validity, trace.rows.validity)
