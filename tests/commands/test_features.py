"""Each feature of a run end to end: captured from the command line, and found to be right by `diff`."""

import json

import numpy as np
import pytest

from moeinspect.runtime.models.tokenizer import load_tokenizer
from moeinspect.trace.reader import read_trace
from moeinspect.trace.schema import FinishReason, Origin, Validity

LINES = [{"id": str(i), "input_ids": [(7 * i + j) % 900 + 1 for j in range(4 + 9 * i)]} for i in range(6)]


@pytest.fixture
def captured(run, prompts, tmp_path):
    """Captures `lines`, has `diff` find the trace right, and returns it."""

    def capture(*options, lines=LINES, new=8):
        argv = ["--prompts", prompts(*lines), "--max-new-tokens", new, "--weights", "-f", "-o", "t.h5"]
        done = run("capture", *argv, *options)
        assert (done.status, "t.h5" in done.stdout) == (0, True), done.stderr
        compared = run("diff", "t.h5", "--format", "json")
        report = json.loads(compared.stdout)
        assert (compared.status, report["verdict"]) == (0, "clean"), report["findings"]
        return read_trace(tmp_path / "t.h5")

    return capture


def test_several_workers_of_each_kind(captured):
    trace = captured("--disagg", "--prefill-workers", 2, "--decode-workers", 2)
    assert trace.worker_names == ("prefill-0", "prefill-1", "decode-0", "decode-1")
    assert set(trace.rows.worker.tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("options", [["--stream"], ["--stream", "--disagg"]], ids=" ".join)
def test_answers_in_pieces(captured, options):
    assert captured(*options).run.run_config["stream"] is True


@pytest.mark.parametrize("options", [[], ["--disagg"]], ids=["unified", "disagg"])
def test_several_samples_of_one_prompt(captured, options):
    lines = [{**LINES[1], "n": 3}, {**LINES[2], "n": 2, "seed": 5}, LINES[3]]
    trace = captured("--temperature", 1, *options, lines=lines)
    outputs = {}
    for position, (name, sample) in enumerate(zip(trace.requests.id, trace.requests.sample, strict=True)):
        prompt_len = trace.requests.prompt_len[position]
        outputs[name, sample] = tuple(trace.tokens_of(position)[prompt_len:])
    assert sorted(outputs) == [("1", 0), ("1", 1), ("1", 2), ("2", 0), ("2", 1), ("3", 0)]
    assert len(set(outputs.values())) == 6
    assert trace.run.run_config["request_seeds"] == {"2": 5}


@pytest.mark.quick(2)
@pytest.mark.parametrize("options", [[], ["--disagg"], ["--draft", "builtin:tiny-draft"]], ids=" ".join)
def test_requests_that_do_not_ask_for_their_routed_experts(captured, options):
    lines = [{**line, "return_routed_experts": i % 2 == 0} for i, line in enumerate(LINES)]
    trace = captured(*options, lines=lines)
    assert sorted(trace.run.run_config["not_opted_in"]) == [["1", 0], ["3", 0], ["5", 0]]
    for position, name in enumerate(trace.requests.id):
        rows = trace.row_range(position)
        expected = Validity.REAL if int(name) % 2 == 0 else Validity.MISSING
        assert set(trace.rows.validity[rows].tolist()) == {expected}


def test_a_shared_prefix_is_computed_once(captured):
    shared = list(range(1, 49))
    lines = [{"id": str(i), "input_ids": [*shared, 50 + i, 60 + i]} for i in range(6)]
    trace = captured("--max-running-requests", 2, lines=lines)
    cached = trace.requests.cached_tokens
    assert cached.max() >= 40 and (cached > 0).sum() >= 4
    for position in range(len(trace.requests)):
        origin = trace.rows.origin[trace.row_range(position)]
        assert (origin[: cached[position]] == Origin.PREFIX_CACHE).all()
        assert (origin[cached[position] :] != Origin.PREFIX_CACHE).all()
    assert not captured("--no-prefix-cache", lines=lines).requests.cached_tokens.any()


@pytest.mark.parametrize(
    "slots", [pytest.param(0, marks=pytest.mark.long), 1024], ids=["no host tier", "host tier"]
)
def test_prefixes_that_make_room(run, slots, tmp_path):
    options = ["--max-new-tokens", 8, "--host-kv-slots", slots]
    done = run("capture", "--traffic", "shared-prefixes", *options, "-o", "t.h5")
    assert done.status == 0
    assert run("diff", "t.h5").status == 0
    # Without a host tier the few slots may have no room for a prefix until it is wanted again.
    assert slots == 0 or "from the prefix cache" in done.stdout
    assert read_trace(tmp_path / "t.h5").run.run_config["max_running_requests"] == 2


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    "options",
    [
        ["--graph"],
        ["--graph", "--draft", "builtin:tiny-draft"],
        ["--backend", "bypass"],
        ["--draft", "ngram"],
        ["--draft", "ngram", "--disagg"],
        ["--draft", "builtin:tiny-draft", "--adaptive-draft"],
        ["--disagg", "--transfer", "gloo"],
    ],
    ids=" ".join,
)
def test_a_switch_changes_nothing_that_is_recorded(captured, options):
    captured(*options)


@pytest.mark.quick(2)
@pytest.mark.parametrize("options", [[], ["--disagg"], ["--draft", "builtin:tiny-draft"]], ids=" ".join)
def test_requests_for_no_token_have_a_row_for_each_prompt_token(captured, options):
    trace = captured(*options, lines=[{**LINES[2], "max_new_tokens": 0}, LINES[3]])
    position = trace.requests.id.tolist().index("2")
    assert trace.requests.output_len[position] == 0
    assert trace.requests.num_rows[position] == trace.requests.prompt_len[position]


def test_a_run_for_no_token_at_all(captured):
    trace = captured(new=0)
    assert (trace.requests.num_rows == trace.requests.prompt_len).all()
    assert not trace.requests.output_len.any()


@pytest.mark.quick(2)
@pytest.mark.parametrize("options", [[], ["--disagg"], ["--draft", "builtin:tiny-draft"]], ids=" ".join)
def test_stop_tokens_end_a_request_and_are_its_last_token(captured, options):
    stops = list(range(0, 1024, 3))
    trace = captured(*options, lines=[{**line, "stop_token_ids": stops} for line in LINES], new=30)
    stopped = trace.requests.finish_reason == FinishReason.STOP
    assert stopped.sum() >= 4
    for position in np.flatnonzero(stopped):
        prompt_len = trace.requests.prompt_len[position]
        is_stop = np.isin(trace.tokens_of(position)[prompt_len:], stops)
        assert is_stop[-1] and not is_stop[:-1].any()


UPDATES = ["--weight-update", "4:builtin:tiny-updated", "--weight-update", "9:builtin:tiny"]


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "options",
    [[], ["--no-overlap"], ["--draft", "builtin:tiny-draft"], ["--temperature", "1", "--no-prefix-cache"]],
    ids=" ".join,
)
def test_weights_that_change_on_the_way(captured, options):
    """`diff` computes every row again under the weights that computed it first."""
    trace = captured(*UPDATES, *options, new=20)
    assert trace.weight_versions == ("builtin:tiny", "builtin:tiny-updated", "builtin:tiny")
    assert trace.requests.num_retractions.sum() >= 4
    assert set(trace.rows.weight_version.tolist()) == {0, 1, 2}
    for position in range(len(trace.requests)):
        versions = trace.rows.weight_version[trace.row_range(position)]
        assert (np.diff(versions.astype(int)) >= 0).all()
        assert trace.requests.num_weight_versions[position] == len(np.unique(versions))


def test_updates_that_come_too_late_change_nothing(captured):
    trace = captured("--weight-update", "4000:builtin:tiny-updated")
    assert len(trace.weight_versions) == 2 and not trace.rows.weight_version.any()


def test_weights_that_serve_from_the_start(captured):
    assert set(captured("--weight-update", "0:builtin:tiny-updated").rows.weight_version.tolist()) == {1}


def test_weights_of_another_shape_are_refused_before_the_run(run, tmp_path):
    done = run("capture", "--weight-update", "4:builtin:tiny-draft", "-o", "t.h5")
    assert (done.status, list(tmp_path.iterdir())) == (2, [])
    assert done.error.startswith(
        "--weight-update builtin:tiny-draft: its config differs from that of builtin"
    )


@pytest.mark.quick(2)
@pytest.mark.parametrize("options", [[], ["--disagg"], ["--draft", "builtin:tiny-draft"]], ids=" ".join)
def test_stop_strings_end_a_request(run, options, tmp_path):
    argv = ["--stop", "e", "--stop", "self", "--max-new-tokens", 20, "-o", "t.h5", *options]
    assert run("capture", *argv).status == 0
    trace = read_trace(tmp_path / "t.h5")
    stopped = trace.requests.finish_reason == FinishReason.STOP
    tokenizer = load_tokenizer("builtin:tiny")
    assert stopped.sum() >= 6
    for position in np.flatnonzero(stopped):
        output = trace.tokens_of(position)[trace.requests.prompt_len[position] :].tolist()
        assert "e" in tokenizer.decode(output) and "e" not in tokenizer.decode(output[:-1])
    assert run("diff", "t.h5").status == 0


@pytest.mark.quick(2)
@pytest.mark.parametrize("options", [[], ["--disagg"], ["--draft", "builtin:tiny-draft"]], ids=" ".join)
def test_clients_that_go_away(captured, options):
    lines = [
        {**line, "abort_after": after} for line, after in zip(LINES, [0, 1, 3, 7, 30, None], strict=True)
    ]
    trace = captured(*options, lines=lines, new=30)
    ended = dict(zip(trace.requests.id.tolist(), trace.requests.finish_reason.tolist(), strict=True))
    assert {name for name, reason in ended.items() if reason == FinishReason.ABORT} >= {"0", "1", "2", "3"}
    assert ended["5"] != FinishReason.ABORT
    for position, name in enumerate(trace.requests.id.tolist()):
        output_len = trace.requests.output_len[position]
        if ended[name] == FinishReason.ABORT:
            assert (lines[int(name)]["abort_after"]) <= output_len < 30
        assert trace.requests.num_rows[position] <= trace.requests.prompt_len[position] + max(
            0, output_len - 1
        )


@pytest.mark.quick(2)
@pytest.mark.parametrize("options", [[], ["--disagg"], ["--no-overlap"], ["--graph"]], ids=" ".join)
def test_draft_trees(captured, options):
    trace = captured("--draft", "builtin:tiny-draft", "--draft-topk", 2, *options)
    assert trace.requests.num_accepted.sum() > 0


def test_everything_at_once(captured):
    lines = [
        {**LINES[0], "n": 2, "stop_token_ids": list(range(0, 1024, 9))},
        {**LINES[1], "return_routed_experts": False},
        {**LINES[2], "max_new_tokens": 0},
        {**LINES[3], "abort_after": 4},
        *LINES[4:],
    ]
    captured(
        *(
            "--disagg",
            "--prefill-workers",
            2,
            "--decode-workers",
            2,
            "--transfer",
            "gloo",
            "--stream",
            "--graph",
        ),
        *("--draft", "builtin:tiny-draft", "--draft-topk", 2, "--temperature", 0.8, "--host-kv-slots", 64),
        lines=lines,
        new=20,
    )
