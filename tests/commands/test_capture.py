"""`capture` end to end: what it writes, says and leaves behind."""

import json
from pathlib import Path

import pytest

from moeinspect.trace.reader import read_trace
from moeinspect.trace.schema import Lane, Origin

SHORT = ({"id": "text", "prompt": "Hello there"}, {"id": "ids", "input_ids": [1, 2, 3, 4, 5], "seed": 3})


def test_a_run_without_options_takes_the_embedded_model_and_the_built_in_prompts(run, tmp_path):
    done = run("capture", "--max-new-tokens", 4)
    assert done.status == 0
    assert done.stdout.startswith("Wrote tiny.h5: ")
    assert done.stderr == "Next: moeinspect diff tiny.h5\n"
    trace = read_trace(tmp_path / "tiny.h5")
    assert trace.run.complete
    assert len(trace.requests) >= 8
    assert trace.requests.cached_tokens.any()
    assert len(set(trace.requests.prompt_len.tolist())) >= 4
    assert (trace.requests.output_len <= 4).all()


def test_the_built_in_prompts_make_200_rows_or_more(run, tmp_path):
    assert run("capture", "--max-new-tokens", 1, "-q", "-o", "t.h5").status == 0
    assert len(read_trace(tmp_path / "t.h5").rows) >= 200


def test_requests_are_recorded_as_they_were_asked_for(run, prompts, tmp_path):
    source = prompts(*SHORT, {"id": "short", "input_ids": [7], "max_new_tokens": 2})
    assert (
        run("capture", "--prompts", source, "-o", "t.h5", "--ignore-eos", "--max-new-tokens", 6).status == 0
    )
    trace = read_trace(tmp_path / "t.h5")
    by_id = {str(name): position for position, name in enumerate(trace.requests.id)}
    assert set(by_id) == {"text", "ids", "short"}
    assert trace.tokens_of(by_id["ids"])[:5].tolist() == [1, 2, 3, 4, 5]
    assert trace.requests.output_len[by_id["ids"]] == 6
    assert trace.requests.output_len[by_id["short"]] == 2
    rows = trace.requests.num_rows
    assert (rows == trace.requests.prompt_len + trace.requests.output_len - 1).all()
    assert trace.run.run_config["request_seeds"] == {"ids": 3}


def test_the_run_is_recorded_and_the_fault_only_where_it_belongs(run, prompts, tmp_path):
    done = run("capture", "--prompts", prompts(*SHORT), "-o", "t.h5", "--fault", "buffer-reuse", "--seed", 5)
    assert done.status == 0
    run_info = read_trace(tmp_path / "t.h5").run
    assert run_info.injected_faults == ("buffer-reuse",)
    assert "buffer-reuse" not in json.dumps(dict(run_info.run_config))
    assert "faults" not in run_info.run_config
    assert run_info.run_config["seed"] == 5
    assert run_info.run_config["model"] == "builtin:tiny"
    assert "with the fault buffer-reuse" in done.stdout


def test_a_fault_says_what_it_turned_on(run, prompts):
    done = run("capture", "--prompts", prompts(*SHORT), "--fault", "no-merge", "--max-new-tokens", 2)
    assert done.status == 0
    assert "--fault no-merge turned on --disagg\n" in done.stderr


def test_a_fault_without_what_it_needs_warns(run, prompts):
    done = run(
        "capture",
        "--prompts",
        prompts(*SHORT),
        "--fault",
        "buffer-reuse",
        "--no-overlap",
        "--max-new-tokens",
        2,
    )
    assert done.status == 0
    assert done.stderr.startswith("warning: --fault buffer-reuse does nothing in this run")


def test_quiet_says_nothing_on_stderr(run, prompts):
    done = run("capture", "--prompts", prompts(*SHORT), "-q", "--max-new-tokens", 2)
    assert done.stderr == ""
    assert done.stdout.startswith("Wrote tiny.h5: 2 requests")


def test_json_is_one_document_with_what_was_recorded(run, prompts, tmp_path):
    done = run(
        "capture",
        "--prompts",
        prompts(*SHORT),
        "--format",
        "json",
        "--draft",
        "builtin:tiny-draft",
        "-o",
        "t.h5",
    )
    document = json.loads(done.stdout)
    trace = read_trace(tmp_path / "t.h5")
    assert document["schema"] == "moeinspect-capture/1"
    assert document["output"] == "t.h5"
    assert document["requests"] == len(trace.requests) == 2
    assert document["rows"] == len(trace.rows)
    assert document["num_drafted"] == trace.requests.num_drafted.sum() > 0
    assert document["num_accepted"] == trace.requests.num_accepted.sum()
    assert document["next"] == "moeinspect diff t.h5"
    assert done.stderr == ""


def test_everything_together_records_weights_origins_workers_and_events(run, prompts, tmp_path):
    source = prompts(*SHORT, *({"id": str(i), "input_ids": list(range(1, 60 + i))} for i in range(3)))
    options = ["--overlap", "--disagg", "--draft", "builtin:tiny-draft", "--weights", "--margins"]
    assert run("capture", "--prompts", source, *options, "-o", "t.h5").status == 0
    trace = read_trace(tmp_path / "t.h5")
    assert trace.worker_names == ("prefill-0", "decode-0")
    assert trace.rows.weights.shape == trace.rows.expert_ids.shape
    assert trace.rows.margin.shape == trace.rows.expert_ids.shape[:2]
    for position in range(len(trace.requests)):
        rows, prompt_len = trace.row_range(position), int(trace.requests.prompt_len[position])
        assert (trace.rows.origin[rows][:prompt_len] == Origin.PREFILL).all()
        assert (trace.rows.origin[rows][prompt_len:] == Origin.VERIFY).all()
        assert (trace.rows.worker[rows][:prompt_len] == 0).all()
        assert (trace.rows.worker[rows][prompt_len:] == 1).all()
    assert set(trace.events.lane.tolist()) >= {Lane.HOST, Lane.COMPUTE, Lane.COPY, Lane.TRANSFER}
    assert len(set(trace.events.pid.tolist())) >= 2
    assert (trace.events.end >= trace.events.start).all()


def test_existing_output_is_kept_unless_forced(run, prompts, tmp_path):
    source = prompts(*SHORT)
    (tmp_path / "t.h5").write_text("mine")
    done = run("capture", "--prompts", source, "-o", "t.h5")
    assert done.status == 2
    assert done.error.startswith("t.h5 exists; ")
    assert (tmp_path / "t.h5").read_text() == "mine"
    assert run("capture", "--prompts", source, "-o", "t.h5", "-f", "--max-new-tokens", 1).status == 0
    assert len(read_trace(tmp_path / "t.h5").requests) == 2


def test_the_prompts_file_is_never_overwritten(run, prompts):
    source = prompts(*SHORT)
    before = source.read_bytes()
    done = run("capture", "--prompts", source, "-o", source, "-f")
    assert done.status == 2
    assert "--output and --prompts are both" in done.error
    assert source.read_bytes() == before


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        (
            [{"id": "x", "input_ids": [1, 10**6]}],
            [],
            "token id 1000000, outside the vocabulary",
        ),
        ([{"id": "x", "input_ids": [1] * 100}], ["--num-kv-slots", 64], "prompt 'x' needs"),
        ([{"id": "x", "input_ids": [1] * 200_000}], [], "prompt 'x' needs"),
        ([], [], "no prompts in it"),
    ],
)
def test_requests_that_cannot_run_leave_no_file(run, prompts, tmp_path, lines, options, message):
    source = prompts(*lines)
    done = run("capture", "--prompts", source, "-o", "t.h5", *options)
    assert (done.status, done.stdout) == (2, "")
    assert message in done.error
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("nowhere/t.h5", "there is no folder nowhere"),
        ("prompts.jsonl/t.h5", "there is no folder prompts.jsonl"),
        (".", "cannot write ."),
        ("/proc/t.h5", "its folder does not take a new file"),
    ],
)
def test_an_output_that_cannot_be_written_is_found_before_the_model_is_loaded(
    run, prompts, monkeypatch, output, message
):
    monkeypatch.setattr("moeinspect.runtime.engine.LocalRuntime.__init__", _never)
    done = run("capture", "--prompts", prompts(*SHORT), "-o", output)
    assert done.status == 2
    assert message in done.error


def _never(*_args, **_values):
    raise AssertionError("the model was loaded")


def test_bad_prompts_are_found_before_the_model_is_loaded(run, tmp_path, monkeypatch):
    monkeypatch.setattr("moeinspect.runtime.engine.LocalRuntime.__init__", _never)
    (tmp_path / "bad.jsonl").write_text('{"prompt": "x"\n')
    done = run("capture", "--prompts", "bad.jsonl")
    assert done.status == 2
    assert done.error.startswith("bad.jsonl:1: broken JSON")
    assert [p.name for p in tmp_path.iterdir()] == ["bad.jsonl"]


@pytest.mark.parametrize("model", ["nowhere", "builtin:huge"])
def test_a_model_that_is_not_there_is_one_line(run, tmp_path, model):
    done = run("capture", model, "-o", "t.h5")
    assert (done.status, done.stdout) == (2, "")
    assert model in done.error
    assert list(tmp_path.iterdir()) == []


def test_prompts_come_from_stdin_for_a_dash(run, tmp_path, monkeypatch):
    source = tmp_path / "in"
    source.write_text('{"id": "a", "input_ids": [1, 2]}\n')
    with source.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert run("capture", "--prompts", "-", "-o", "t.h5", "--max-new-tokens", 2).status == 0
    assert read_trace(tmp_path / "t.h5").requests.id.tolist() == ["a"]


def test_github_format_is_an_annotation(run, prompts):
    done = run("capture", "--prompts", prompts(*SHORT), "--format", "github", "--max-new-tokens", 1)
    assert done.stdout.startswith("::notice title=moeinspect capture::Wrote tiny.h5")


def test_a_name_with_spaces_is_quoted_in_the_next_command(run, prompts):
    done = run("capture", "--prompts", prompts(*SHORT), "-o", "my trace.h5", "--max-new-tokens", 1)
    assert "Next: moeinspect diff 'my trace.h5'\n" in done.stderr


def test_an_engine_that_fails_before_the_first_row_leaves_no_file(run, prompts, monkeypatch, tmp_path):
    source = prompts(*SHORT)
    monkeypatch.setattr("moeinspect.runtime.engine.LocalRuntime.generate", _failing_after(0))
    done = run("capture", "--prompts", source, "-o", "t.h5")
    assert (done.status, done.error) == (2, "the engine failed")
    assert list(tmp_path.iterdir()) == [source]


def test_an_engine_that_fails_later_leaves_what_had_ended(run, prompts, monkeypatch, tmp_path):
    monkeypatch.setattr("moeinspect.runtime.engine.LocalRuntime.generate", _failing_after(1))
    done = run("capture", "--prompts", prompts(*SHORT), "-o", "t.h5")
    assert (done.status, done.error) == (2, "the engine failed")
    trace = read_trace(tmp_path / "t.h5")
    assert (trace.run.complete, len(trace.requests)) == (False, 1)


def _failing_after(count):
    from moeinspect.errors import EngineError
    from moeinspect.runtime.engine import LocalRuntime

    whole = LocalRuntime.generate

    def generate(self, requests):
        for position, finished in enumerate(whole(self, requests)):
            if position == count:
                raise EngineError("the engine failed")
            yield finished

    return generate


def test_a_checkpoint_folder_is_recorded_by_its_absolute_path(run, prompts, tmp_path):
    from moeinspect.commands._plan import absolute_model, derived_output

    (tmp_path / "models" / "My-MoE").mkdir(parents=True)
    assert absolute_model("models/My-MoE") == str(tmp_path / "models" / "My-MoE")
    assert derived_output("models/My-MoE/", "") == Path("My-MoE.h5")
    assert derived_output("builtin:tiny", "-disagg") == Path("tiny-disagg.h5")


def test_a_name_that_looks_like_an_option_is_no_option_in_the_next_command(run, prompts):
    done = run("capture", "--prompts", prompts(*SHORT), "-o", "./-x.h5", "--max-new-tokens", 1)
    assert done.stderr == "Next: moeinspect diff ./-x.h5\n"


@pytest.mark.parametrize("options", [[], ["--disagg"]], ids=["unified", "disagg"])
def test_more_kv_slots_than_memory_is_one_line_and_no_file(run, prompts, tmp_path, options):
    source = prompts(*SHORT)
    done = run("capture", "--prompts", source, "-o", "t.h5", "--num-kv-slots", 2**31 - 1, *options)
    assert (done.status, done.stdout) == (2, "")
    assert "memory" in done.error
    assert "this is a bug" not in done.error
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize("option", ["--num-kv-slots", "--host-kv-slots", "--max-running-requests"])
def test_a_number_that_counts_nothing_on_earth_is_refused_by_its_option(option, run):
    done = run("capture", option, 10**20, "-o", "t.h5")
    assert done.status == 2 and option in done.error and "at most" in done.error
    assert not Path("t.h5").exists()


def test_new_weights_that_are_not_there_are_named_by_their_option(run):
    done = run("capture", "--weight-update", "1:nowhere", "-o", "t.h5")
    assert done.status == 2 and "--weight-update" in done.error and "nowhere" in done.error
