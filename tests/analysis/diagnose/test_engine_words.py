"""Arguments of SGLang and vLLM are read as the switches that they are; next steps name their options."""

import re
from dataclasses import replace

import pytest
from analysis.tracefactory import make_facts, make_records, make_trace

from moeinspect.analysis.diagnose.catalogue import CAUSES
from moeinspect.analysis.diagnose.facts import run_facts
from moeinspect.analysis.diagnose.nextstep import diagnosis

FACTS = make_facts()
ROWS = {"enable_return_routed_experts": True}

OPTIONS = {
    "sglang": {
        *("--disable-overlap-schedule", "--disable-cuda-graph", "--disable-radix-cache"),
        *("--speculative-algorithm", "--speculative-eagle-topk", "--disaggregation-mode"),
        *(
            "--enable-hierarchical-cache",
            "--enable-return-routed-experts",
            "--enable-deterministic-inference",
        ),
        *("--dp-size", "--tp-size", "--pp-size", "--enable-dp-attention", "--moe-a2a-backend"),
        *("--enable-eplb", "--init-expert-location", "--ep-num-redundant-experts"),
        *("--moe-runner-backend", "--disable-shared-experts-fusion"),
    },
    "vllm": {
        *("--no-async-scheduling", "--enforce-eager", "--no-enable-prefix-caching", "--enable-eplb"),
        *("--speculative-config", "--kv-transfer-config", "--kv-offloading-size", "--moe-backend"),
        *("--data-parallel-size", "--tensor-parallel-size", "--pipeline-parallel-size"),
        "--enable-return-routed-experts",
    },
}
"""Options as the engines' parsers spell them."""


def facts_of(engine, **config):
    one = make_trace(make_records(FACTS, 1), FACTS, run={"engine": engine, "run_config": config})
    return run_facts(one)


def test_what_sglangs_arguments_leave_out_is_at_its_default():
    facts = facts_of("sglang", **ROWS, model_path="m")
    assert (facts.overlap, facts.graph, facts.prefix_cache) == (True, True, True)
    assert (facts.disagg, facts.draft, facts.draft_tree, facts.host_tier) == (False,) * 4
    assert (facts.dp_size, facts.tp_size, facts.pp_size, facts.redundant_experts) == (1, 1, 1, 0)
    assert (facts.backend, facts.fused_shared_expert, facts.hash_layers, facts.mixed_opt_in) == (None,) * 4


def test_a_few_switches_are_not_taken_for_all_of_them():
    facts = facts_of("sglang", speculative_algorithm="EAGLE", speculative_eagle_topk=4)
    assert (facts.draft, facts.draft_tree, facts.draft_layers) == (True, True, True)
    assert (facts.overlap, facts.disagg, facts.dp_size) == (None, None, None)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"disable_overlap_schedule": True}, {"overlap": False}),
        ({"--disable-overlap-schedule": "true"}, {"overlap": False}),
        ({"engine_args": {**ROWS, "disable_overlap_schedule": True}}, {"overlap": False, "disagg": False}),
        ({"disaggregation_mode": "decode"}, {"disagg": True}),
        ({"disaggregation_mode": "null"}, {"disagg": False}),
        ({"speculative_algorithm": None, **ROWS}, {"draft": False, "draft_tree": False}),
        ({"speculative_algorithm": "NGRAM", **ROWS}, {"draft": True, "draft_tree": True, "ngram": True}),
        ({"speculative_algorithm": "NGRAM"}, {"draft_layers": False, "draft_tree": None}),
        ({"enable_hierarchical_cache": True}, {"host_tier": True}),
        ({"moe_runner_backend": "flashinfer_trtllm"}, {"backend": "bypass"}),
        ({"moe_runner_backend": "auto"}, {"backend": None}),
        ({"dp_size": "2", "ep_num_redundant_experts": 32}, {"dp_size": 2, "redundant_experts": 32}),
        ({"disable_shared_experts_fusion": True}, {"fused_shared_expert": False}),
    ],
)
def test_sglangs_words(config, expected):
    facts = facts_of("sglang", **config)
    assert {name: getattr(facts, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (ROWS, {"overlap": None, "graph": None, "disagg": False, "draft": False, "tp_size": 1}),
        ({"async_scheduling": False, "enforce_eager": True}, {"overlap": False, "graph": False}),
        ({"kv_transfer_config": {"kv_connector": "NixlConnector"}}, {"disagg": True, "host_tier": False}),
        (
            {"kv_transfer_config": '{"kv_connector": "LMCacheConnectorV1"}'},
            {"disagg": False, "host_tier": True},
        ),
        ({"kv_transfer_config": {"kv_connector": "OwnConnector"}}, {"disagg": None}),
        ({"kv_offloading_size": 4.0}, {"host_tier": True}),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4}},
            {"draft": True, "draft_layers": False, "draft_tree": False, "ngram": True},
        ),
        ({"speculative_config": '{"method": "mtp"}'}, {"draft": True, "draft_layers": True}),
        ({"speculative_config": None}, {"draft": False}),
        ({"data_parallel_size": 2, "pipeline_parallel_size": 4}, {"dp_size": 2, "pp_size": 4}),
        ({**ROWS, "eplb_config": {"num_redundant_experts": 8}}, {"redundant_experts": 8}),
        ({"moe_backend": "triton"}, {"backend": "triton"}),
    ],
)
def test_vllms_words(config, expected):
    facts = facts_of("vllm", **config)
    assert {name: getattr(facts, name) for name in expected} == expected


@pytest.mark.parametrize("engine", OPTIONS)
def test_next_steps_name_options_that_the_engine_has(engine):
    other = next(iter(OPTIONS.keys() - {engine}))
    named = {option for cause in CAUSES.values() for option in _options(getattr(cause, engine))}
    assert named <= OPTIONS[engine] | {"--noise-floor"}
    assert len(named) > 8
    for name, cause in CAUSES.items():
        told = cause.for_engine(engine)
        assert not _options(told) & (OPTIONS[other] - OPTIONS[engine]), name
        assert not _options(cause.engine), f"{name}: the words for any engine name no option of one"


@pytest.mark.parametrize("engine", ["sglang", "vllm", "another"])
def test_a_foreign_trace_gets_the_words_of_its_engine(engine):
    records = make_records(FACTS, 1)
    step = diagnosis("read-early", 0.5, (), make_trace(records, FACTS, run={"engine": engine})).next_step
    assert step == CAUSES["read-early"].for_engine(engine)
    assert "moeinspect capture" not in step
    local = make_trace([replace(one) for one in records], FACTS)
    assert "--no-overlap" in diagnosis("read-early", 0.5, (), local).next_step


def _options(text):
    return set(re.findall(r"--[a-z][a-z0-9-]+", text))
