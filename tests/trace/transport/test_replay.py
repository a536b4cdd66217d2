"""A replay that does nothing leaves the mismatches of two engines."""

from dataclasses import replace

import numpy as np
from analysis.tracefactory import make_facts, make_records, make_trace

from moeinspect.trace.transport.replay import STATED, replay_without_effect

FACTS = make_facts(8, 32, 4)


def test_one_expert_of_few_cells_is_another_more_of_them_with_depth():
    trace = make_trace(make_records(FACTS, 8), FACTS)
    changed = replay_without_effect(trace, 0.05, np.random.default_rng(0))
    ids, right = changed.rows.expert_ids, trace.rows.expert_ids
    assert np.array_equal(ids[..., :3], right[..., :3])
    differs = ids[..., 3] != right[..., 3]
    assert 0.03 < differs.mean() < 0.07
    assert differs[:, 4:].sum() > 2 * differs[:, :4].sum()
    assert (np.diff(np.sort(ids, axis=2), axis=2) > 0).all()
    assert changed.run.run_config == STATED


def test_where_margins_are_known_the_nearest_ties_flip():
    rng = np.random.default_rng(0)
    records = [
        replace(record, margin=rng.random(record.expert_ids.shape[:2]).astype(np.float32))
        for record in make_records(FACTS, 4)
    ]
    trace = make_trace(records, FACTS)
    changed = replay_without_effect(trace, 0.05, rng, first_layer=0.5)
    differs = (changed.rows.expert_ids != trace.rows.expert_ids).any(axis=2)
    assert not differs[:, :4].any()
    assert trace.rows.margin[differs].max() < 0.4
