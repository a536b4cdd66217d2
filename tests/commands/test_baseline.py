"""The baseline that `diff` makes: the same requests and sampling, everything else target-only."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest

from moeinspect import cli
from moeinspect.commands._baseline import SHOWN_PATH, baseline_config, baseline_requests, made_baseline
from moeinspect.console import Console
from moeinspect.errors import InputError, OutputError
from moeinspect.trace.reader import read_trace

OPTIONS = "--max-new-tokens 6 --disagg --draft builtin:tiny-draft --weights --temperature 1 --seed 9 -q"
LINES = ({"id": "a", "prompt": "Once upon a time"}, {"id": "b", "input_ids": [5, 6, 7], "seed": 4})


def console():
    return Console(io.StringIO(), io.StringIO(), io.StringIO(), {})


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """A sampled trace of two requests, with everything turned on."""
    folder = tmp_path_factory.mktemp("baseline")
    prompts, output = folder / "prompts.jsonl", folder / "a.h5"
    prompts.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    assert cli.main(["capture", "--prompts", str(prompts), "-o", str(output), *OPTIONS.split()]) == 0
    return replace(read_trace(output), path="a.h5")


def with_run(trace, **changes):
    return replace(trace, run=replace(trace.run, **changes))


def with_config(trace, **changes):
    return with_run(trace, run_config={**trace.run.run_config, **changes})


def test_it_takes_over_model_machine_and_sampling_and_nothing_else(trace):
    config = baseline_config(trace)
    assert (config.model, config.dtype, config.device, config.threads) == (
        "builtin:tiny",
        "float32",
        "cpu",
        1,
    )
    assert (config.temperature, config.top_p, config.top_k, config.seed) == (1.0, 1.0, 0, 9)
    assert config.target_only
    assert (config.overlap, config.disagg, config.draft, config.max_running_requests) == (
        False,
        False,
        None,
        1,
    )
    assert (config.weights, config.margins, config.faults) == (True, True, ())


def test_it_records_weights_only_if_the_trace_has_them(trace):
    assert not baseline_config(replace(trace, rows=replace(trace.rows, weights=None))).weights


def test_requests_run_again_as_long_as_they_were_with_their_own_seeds(trace):
    requests = {request.id: request for request in baseline_requests(trace, console())}
    assert requests["b"].prompt_ids == (5, 6, 7)
    assert (requests["a"].seed, requests["b"].seed) == (None, 4)
    assert all(request.ignore_eos for request in requests.values())
    for position, name in enumerate(trace.requests.id.tolist()):
        assert requests[name].max_new_tokens == trace.requests.output_len[position]


def with_requests(trace, name, **values):
    """`trace` with other values in these columns of the request `name`."""
    position = trace.requests.id.tolist().index(name)
    columns = {column: getattr(trace.requests, column).copy() for column in values}
    for column, value in values.items():
        columns[column][position] = value
    return replace(trace, requests=replace(trace.requests, **columns))


def test_a_request_without_output_computes_its_prompt(trace):
    shown = console()
    requests = baseline_requests(with_requests(trace, "b", output_len=0, num_rows=3), shown)
    assert {request.id: request.max_new_tokens for request in requests}["b"] == 0
    assert shown.stderr.getvalue() == ""


def test_a_request_without_a_prompt_is_left_out_with_a_note(trace):
    shown = console()
    requests = baseline_requests(with_requests(trace, "b", prompt_len=0, output_len=0, num_rows=0), shown)
    assert [request.id for request in requests] == ["a"]
    assert shown.stderr.getvalue() == "request 'b' has no prompt token and is left out of the baseline\n"


def test_samples_run_again_under_their_numbers_with_the_seed_of_their_request(trace):
    sampled = with_requests(trace, "b", sample=2)
    second = {request.key: request for request in baseline_requests(sampled, console())}["b", 2]
    assert (second.seed, second.prompt_ids) == (4, (5, 6, 7))


def test_what_did_not_ask_for_its_routed_experts_does_not_ask_again(trace):
    requests = baseline_requests(with_config(trace, not_opted_in=[["b", 0], ["a", 1]]), console())
    assert {request.id: request.return_routed_experts for request in requests} == {"a": True, "b": False}


@pytest.mark.parametrize("keys", [{"a": 0}, "a", ["a"], [["a"]], [["a", True]], [[1, 0]]])
def test_not_opted_in_that_is_no_list_of_keys_is_refused(trace, keys):
    with pytest.raises(InputError, match="not_opted_in"):
        baseline_requests(with_config(trace, not_opted_in=keys), console())


def test_the_baseline_has_the_bits_of_the_trace(trace):
    with made_baseline(trace, None, False, console()) as baseline:
        assert baseline.path == SHOWN_PATH
        assert baseline.run.complete
        assert baseline.run.baseline_of == trace.path
        order = [list(baseline.requests.id).index(name) for name in trace.requests.id]
        for ours, theirs in enumerate(order):
            np.testing.assert_array_equal(trace.tokens_of(ours), baseline.tokens_of(theirs))
            rows, other = trace.row_range(ours), baseline.row_range(theirs)
            np.testing.assert_array_equal(trace.rows.expert_ids[rows], baseline.rows.expert_ids[other])
            np.testing.assert_array_equal(trace.rows.weights[rows], baseline.rows.weights[other])


def test_a_kept_baseline_stays_and_is_named(trace, tmp_path):
    kept = tmp_path / "kept.h5"
    with made_baseline(trace, kept, False, console()) as baseline:
        assert baseline.path == str(kept)
    assert read_trace(kept).run.baseline_of == trace.path
    with pytest.raises(OutputError, match="exists"), made_baseline(trace, kept, False, console()):
        pass


def test_another_engines_trace_gets_the_command_that_makes_a_reference(trace):
    with pytest.raises(InputError) as caught:
        baseline_config(with_run(trace, engine="sglang"))
    assert "recorded by sglang" in caught.value.message
    assert "moeinspect capture MODEL --target-only" in caught.value.hint
    assert "moeinspect diff a.h5 reference.h5" in caught.value.hint


def test_a_changed_model_is_refused(trace):
    changed = replace(trace, model=replace(trace.model, fingerprint="0" * 16))
    with pytest.raises(InputError, match=r"builtin:tiny: not the model that a\.h5 was recorded with"):
        made_baseline(changed, None, False, console()).__enter__()


@pytest.mark.parametrize(
    ("name", "value"),
    [("model", None), ("dtype", 3), ("threads", "2"), ("seed", True), ("temperature", "hot"), ("top_k", [])],
)
def test_a_run_config_that_tells_nonsense_is_refused(trace, name, value):
    with pytest.raises(InputError, match=f"its run_config does not tell a usable {name}"):
        baseline_config(with_config(trace, **{name: value}))


@pytest.mark.parametrize("seeds", [[1], {"a": "1"}, {"a": True}])
def test_request_seeds_that_are_none_are_refused(trace, seeds):
    with pytest.raises(InputError, match="request_seeds"):
        baseline_requests(with_config(trace, request_seeds=seeds), console())


def test_the_recorded_options_are_json(trace):
    assert json.loads(json.dumps(dict(trace.run.run_config))) == dict(trace.run.run_config)


def test_rows_wider_than_the_model_chooses_do_not_make_the_baseline_wider(tmp_path):
    prompts, output, model = tmp_path / "prompts.jsonl", tmp_path / "a.h5", "builtin:random-shared"
    prompts.write_text(json.dumps({"input_ids": [5, 6, 7], "max_new_tokens": 5}))
    options = f"--fault shared-expert-column --weight-update 2:{model}-updated -q"
    assert cli.main(["capture", model, "--prompts", str(prompts), "-o", str(output), *options.split()]) == 0
    wide = read_trace(output)
    assert len(wide.weight_versions) == 2
    with made_baseline(wide, None, False, console()) as baseline:
        assert (wide.model.top_k, baseline.model.top_k) == (5, 4)
        assert baseline.model.fingerprint == wide.model.fingerprint
