"""Which switches a run has on, and what is left of it with fewer of them."""

from dataclasses import fields, replace

import pytest

from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.resolve import TARGET_ONLY, UNCHUNKED, resolve
from moeinspect.runtime.switches import SWITCHES, switches_on, with_only

EVERYTHING = RunConfig(
    draft="builtin:tiny-draft",
    draft_topk=2,
    adaptive_draft=True,
    disagg=True,
    prefill_workers=2,
    decode_workers=2,
    transfer="gloo",
    host_kv_slots=64,
    graph=True,
    dp_size=2,
    tp_size=2,
    pp_size=2,
    redundant_experts=2,
    rebalance_interval=4,
    fused_shared_expert=True,
    stream=True,
    num_kv_slots=256,
    deterministic=False,
    backend="bypass",
)
REQUESTS_AND_MACHINE = {
    *("model", "seed", "max_new_tokens", "temperature", "top_p", "top_k", "ignore_eos", "stop", "traffic"),
    *("device", "dtype", "threads", "weights", "margins", "faults", "target_only"),
}
"""What a bisection never changes."""

SIZES = {"num_draft_tokens", "rebalance_interval"}
"""What means nothing by itself."""


def test_every_field_is_a_switch_or_stays_as_it_is():
    assert {field.name for field in fields(RunConfig)} == {*SWITCHES, *REQUESTS_AND_MACHINE, *SIZES}
    assert TARGET_ONLY.keys() <= set(SWITCHES)


def test_a_target_only_run_has_no_switch_on():
    assert switches_on(resolve(RunConfig(target_only=True), frozenset())[0]) == ()


def test_all_that_is_on_is_found_and_can_be_switched_off():
    assert set(switches_on(EVERYTHING)) == set(SWITCHES) - {"weight_updates"}
    off = with_only(EVERYTHING, ())
    assert switches_on(off) == ()
    kept = {"num_draft_tokens": EVERYTHING.num_draft_tokens, "deterministic": True}
    assert off == replace(RunConfig(), **TARGET_ONLY, **kept)


def test_everything_else_stays():
    config = replace(EVERYTHING, seed=7, stop=("x",), traffic=("stops",), faults=("no-merge",), weights=True)
    off = with_only(config, ())
    assert all(getattr(off, name) == getattr(config, name) for name in REQUESTS_AND_MACHINE)


@pytest.mark.parametrize(
    ("wanted", "left"),
    [
        ({"overlap", "graph"}, {"overlap", "graph"}),
        ({"host_kv_slots"}, set()),
        ({"host_kv_slots", "prefix_cache"}, {"host_kv_slots", "prefix_cache"}),
        ({"draft_topk", "adaptive_draft"}, set()),
        ({"transfer", "prefill_workers", "decode_workers", "tp_size"}, {"tp_size"}),
    ],
)
def test_what_means_nothing_without_another_switch_goes_with_it(wanted, left):
    assert set(switches_on(with_only(EVERYTHING, wanted))) == left


def test_a_chunk_that_no_prompt_fills_is_no_switch():
    assert "chunked_prefill_size" not in switches_on(RunConfig(chunked_prefill_size=UNCHUNKED))
