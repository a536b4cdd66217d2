"""The command that repeats a run says all of its options, in words that the command line takes."""

import json
import shlex
from dataclasses import asdict, fields, replace
from types import SimpleNamespace

import pytest
import typer.main

from moeinspect import cli
from moeinspect.analysis.diagnose.rerun import DEFAULTS, run_again
from moeinspect.commands._record import recorded_config
from moeinspect.runtime.config import RunConfig

NOT_REPEATED = {"model", "faults"}
"""The model is no option, and a fault is what the run is repeated without."""

OTHERS = RunConfig(
    draft="ngram",
    overlap=False,
    stream=True,
    disagg=True,
    num_draft_tokens=3,
    draft_topk=2,
    adaptive_draft=True,
    prefix_cache=not RunConfig().prefix_cache,
    host_kv_slots=64,
    graph=True,
    prefill_workers=2,
    decode_workers=3,
    transfer="gloo",
    dp_size=2,
    tp_size=3,
    pp_size=4,
    redundant_experts=5,
    rebalance_interval=6,
    fused_shared_expert=True,
    weight_updates=((3, "a:b"), (7, "c")),
    traffic=("stops", "chunk-seams"),
    chunked_prefill_size=8,
    max_running_requests=4,
    num_kv_slots=256,
    max_new_tokens=5,
    temperature=0.5,
    top_p=0.9,
    top_k=3,
    ignore_eos=True,
    stop=("x y", "z"),
    seed=9,
    target_only=True,
    deterministic=False,
    backend="triton",
    device="cuda",
    dtype="bfloat16",
    threads=2,
    weights=True,
    margins=True,
)


def words(config, *switch):
    """The words between the model and the switch."""
    recorded = json.loads(json.dumps(recorded_config(config, config, [])))
    trace = SimpleNamespace(
        path="t.h5", model=SimpleNamespace(name="m"), run=SimpleNamespace(run_config=recorded)
    )
    again, look = run_again(trace, switch).split(" && ")
    command = shlex.split(again)
    assert look == f"moeinspect diff {command[-1]}"
    return command[3 : -2 - len(switch)]


def test_it_knows_every_option_and_its_default():
    assert json.loads(json.dumps(asdict(RunConfig()))) == {**DEFAULTS, "model": "builtin:tiny", "faults": []}


def test_nothing_is_said_of_a_run_without_options():
    assert words(RunConfig(), "--no-overlap") == []


@pytest.mark.parametrize("name", [f.name for f in fields(RunConfig) if f.name not in NOT_REPEATED])
def test_an_option_is_said_as_the_command_line_takes_it(name):
    value = getattr(OTHERS, name)
    assert value != getattr(RunConfig(), name)
    said = words(replace(RunConfig(), **{name: value}), "--switch")
    parameters = {p.name: p for p in typer.main.get_command(cli.app).commands["capture"].params}
    option = {"weight_updates": "weight_update"}.get(name, name)
    assert set(said[:: 1 if isinstance(value, bool) else 2]) <= {
        *parameters[option].opts,
        *parameters[option].secondary_opts,
    }


@pytest.mark.parametrize(
    ("switch", "gone"),
    [
        (("--no-disagg",), {"--disagg", "--prefill-workers", "--decode-workers", "--transfer"}),
        (("--draft", "none"), {"--draft", "--num-draft-tokens", "--draft-topk", "--adaptive-draft"}),
        (("--no-prefix-cache",), {"--prefix-cache", "--no-prefix-cache", "--host-kv-slots"}),
        (("--no-graph",), {"--graph"}),
        (("--redundant-experts", "0"), {"--redundant-experts", "--rebalance-interval"}),
    ],
)
def test_what_belongs_to_a_feature_goes_with_it(switch, gone):
    def options(words):
        return {word for word in words if word.startswith("--")}

    everything = options(words(OTHERS, "--switch"))
    assert everything - options(words(OTHERS, *switch)) == gone & everything


def test_a_number_of_slots_that_the_run_chose_by_itself_is_not_said():
    config = replace(RunConfig(), num_kv_slots=64)
    recorded = recorded_config(RunConfig(), config, [])
    trace = SimpleNamespace(
        path="t.h5", model=SimpleNamespace(name="m"), run=SimpleNamespace(run_config=recorded)
    )
    assert "--num-kv-slots" not in run_again(trace, ("--no-graph",))
    assert words(config, "--no-graph") == ["--num-kv-slots", "64"]


def test_the_prompts_of_the_run_are_those_of_its_repetition():
    config = recorded_config(RunConfig(), RunConfig(), [], prompts="/there/my prompts.jsonl")
    run = SimpleNamespace(run_config=config)
    trace = SimpleNamespace(run=run, model=SimpleNamespace(name="builtin:tiny"), path="a.h5")
    assert "--prompts '/there/my prompts.jsonl'" in run_again(trace, ("--no-overlap",))


def test_a_stop_that_looks_like_an_option_is_none():
    assert words(RunConfig(stop=("--z", "x")), "--no-graph") == ["--stop=--z", "--stop", "x"]
