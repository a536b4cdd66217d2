"""Faults by name, and traces as lists of requests."""

from dataclasses import fields, replace

import numpy as np
import pytest
from analysis.tracefactory import make_facts, make_record, make_records, make_trace

from moeinspect.errors import UsageError
from moeinspect.trace.schema import Origin, Validity
from moeinspect.trace.transport import TRANSPORT_FAULTS, NoEffectError, apply_transport_fault
from moeinspect.trace.transport.imported import imported
from moeinspect.trace.transport.records import records_of, rows_taken, trace_of


def equal(a, b):
    """Whether two dataclasses of arrays, or two values, hold the same."""
    if hasattr(a, "__dataclass_fields__"):
        return all(equal(getattr(a, field.name), getattr(b, field.name)) for field in fields(a))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    return a == b


def mixed_trace():
    """Requests of every kind: weights, a start, missing and invalid rows, dense layers."""
    facts = make_facts(5, 16, 4, layer_axis="all", moe_layers=(0, 2, 3))
    records = make_records(facts, 3)
    records.append(make_record("later", range(9), range(5), facts, start_pos=4, sample=2, dp_rank=1))
    records[1].validity[:] = Validity.MISSING
    records[1].expert_ids[:] = facts.sentinel
    records[2].expert_ids[3, 2, 1] = -1
    return make_trace(records, facts)


def test_records_and_back_is_the_same_trace():
    trace = mixed_trace()
    assert len(trace.rows.invalid_cells.row) == 1
    assert equal(trace_of(trace, records_of(trace)), trace)


def test_changing_records_leaves_the_trace_as_it_was():
    trace, before = mixed_trace(), mixed_trace()
    for record in records_of(trace):
        record.expert_ids[:] = 0
        record.validity[:] = 0
        record.prompt_ids[:] = 0
    assert equal(trace, before)


def test_taken_rows_bring_their_columns_along():
    facts = make_facts()
    record = make_record("a", range(6), range(4), facts)
    record = replace(record, margin=np.arange(36, dtype=np.float32).reshape(9, 4))
    taken = rows_taken(record, np.asarray([8, 0, 0]))
    assert taken.slot.tolist() == [8, 0, 0]
    assert taken.margin[:, 0].tolist() == [32, 0, 0]
    assert np.array_equal(taken.expert_ids, record.expert_ids[[8, 0, 0]])


def test_an_imported_trace_knows_no_run():
    trace = imported(
        make_trace(make_records(make_facts()), make_facts(), run={"run_config": {"overlap": True}})
    )
    assert set(trace.rows.origin.tolist()) == {Origin.IMPORTED}
    assert set(trace.rows.slot.tolist()) == set(trace.rows.step.tolist()) == {-1}
    assert trace.run.run_config == {} and trace.run.engine != "local"


def test_an_unknown_fault_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match="uint8-wrap"):
        apply_transport_fault("no-such", mixed_trace())


def test_names_are_those_of_the_table():
    assert all(name == fault.name for name, fault in TRANSPORT_FAULTS.items())


def test_a_fault_is_named_in_injected_faults():
    facts = make_facts(experts=300)
    changed = apply_transport_fault("uint8-wrap", make_trace(make_records(facts), facts))
    assert changed.run.injected_faults == ("uint8-wrap",)


def test_a_trace_that_cannot_show_a_fault_is_refused():
    with pytest.raises(NoEffectError, match="uint8-wrap does nothing here"):
        apply_transport_fault("uint8-wrap", mixed_trace())
