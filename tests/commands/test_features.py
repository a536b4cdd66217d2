"""Each feature of a run end to end: captured from the command line, and found to be right by `diff`."""

import json

import pytest

from moeinspect.trace.reader import read_trace
from moeinspect.trace.schema import Validity

LINES = [{"id": str(i), "input_ids": [(7 * i + j) % 900 + 1 for j in range(4 + 9 * i)]} for i in range(6)]


@pytest.fixture
def captured(run, prompts, tmp_path):
    """Captures `lines`, has `diff` find the trace right, and returns it."""

    def capture(*options, lines=LINES, new=8):
        argv = ["--prompts", prompts(*lines), "--max-new-tokens", new, "--weights", "-o", "t.h5"]
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


@pytest.mark.parametrize("options", [[], ["--disagg"], ["--draft", "builtin:tiny-draft"]], ids=" ".join)
def test_requests_that_do_not_ask_for_their_routed_experts(captured, options):
    lines = [{**line, "return_routed_experts": i % 2 == 0} for i, line in enumerate(LINES)]
    trace = captured(*options, lines=lines)
    assert sorted(trace.run.run_config["not_opted_in"]) == [["1", 0], ["3", 0], ["5", 0]]
    for position, name in enumerate(trace.requests.id):
        rows = trace.row_range(position)
        expected = Validity.REAL if int(name) % 2 == 0 else Validity.MISSING
        assert set(trace.rows.validity[rows].tolist()) == {expected}
