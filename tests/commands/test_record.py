"""What of an ended request, and of the requests of a run, goes into the trace."""

from dataclasses import replace

import numpy as np

from moeinspect.commands._record import recorded_config, request_record, weight_version_names
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.records import FinishedRequest, PromptRequest
from moeinspect.trace.schema import FinishReason, Origin, Validity

N = 4
FINISHED = FinishedRequest(
    id="a",
    prompt_ids=np.array([1, 2, 3], np.int32),
    output_ids=np.array([4, 5], np.int32),
    finish_reason="length",
    expert_ids=np.zeros((N, 2, 2), np.uint8),
    origin=np.array([0, 3, 1, 2], np.uint8),
    worker=np.zeros(N, np.uint16),
    step=np.arange(N, dtype=np.int32),
    slot=np.arange(N, dtype=np.int32),
    weights=np.ones((N, 2, 2), np.float32),
    margin=np.ones((N, 2), np.float32),
)


def test_a_request_is_recorded_with_how_it_went():
    record = request_record(replace(FINISHED, sample=3, cached_tokens=2, num_retractions=1, num_drafted=6))
    assert (record.id, record.sample, record.cached_tokens, record.num_retractions) == ("a", 3, 2, 1)
    assert record.num_drafted == 6
    assert record.origin.tolist() == [Origin.PREFILL, Origin.PREFIX_CACHE, Origin.DECODE, Origin.VERIFY]
    assert record.validity.tolist() == [Validity.REAL] * N
    assert (record.weight_version, record.num_weight_versions) == (0, 1)


def test_rows_are_recorded_under_the_weights_that_first_computed_them():
    versions = np.array([1, 1, 2, 2], np.uint16)
    record = request_record(replace(FINISHED, weight_version=versions))
    assert record.row_weight_version.tolist() == [1, 1, 2, 2]
    assert (record.weight_version, record.num_weight_versions) == (1, 2)


def test_rows_of_a_request_that_did_not_ask_for_them_are_declared_missing():
    record = request_record(replace(FINISHED, has_routed_experts=False))
    assert record.validity.tolist() == [Validity.MISSING] * N
    assert record.weights is None and record.margin is None


def test_an_aborted_request_without_a_row_is_recorded():
    nothing = {
        name: getattr(FINISHED, name)[:0] for name in ("expert_ids", "origin", "worker", "step", "slot")
    }
    record = request_record(
        replace(FINISHED, **nothing, output_ids=np.zeros(0, np.int32), finish_reason="abort", weights=None)
    )
    assert record.finish_reason == FinishReason.ABORT
    assert (record.weight_version, record.num_weight_versions) == (0, 1)


def test_seeds_and_opt_outs_of_requests_are_recorded_only_if_there_are_any():
    plain = PromptRequest("a", (1,), 4)
    seeded = [PromptRequest("b", (1,), 4, seed=7, sample=i, return_routed_experts=i != 1) for i in range(3)]
    assert (
        not {"request_seeds", "not_opted_in", "hash_layers"}
        & recorded_config(RunConfig(), RunConfig(), [plain]).keys()
    )
    faulty = RunConfig(faults=("no-merge",))
    config = recorded_config(faulty, faulty, [plain, *seeded])
    assert config["request_seeds"] == {"b": 7}
    assert config["not_opted_in"] == [["b", 1]]
    assert "faults" not in config


def test_weights_are_named_in_the_order_in_which_they_served():
    assert weight_version_names(RunConfig()) == ("default",)
    updated = RunConfig(model="m", weight_updates=((3, "n"), (9, "m")))
    assert weight_version_names(updated) == ("m", "n", "m")


def test_what_the_run_chose_by_itself_is_told_apart_from_what_was_asked_for():
    asked, chosen = RunConfig(), RunConfig(num_kv_slots=64)
    assert recorded_config(asked, chosen, [])["automatic"] == ["num_kv_slots"]
    assert "automatic" not in recorded_config(chosen, chosen, [])
