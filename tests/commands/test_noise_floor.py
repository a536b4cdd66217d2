"""`diff --noise-floor` end to end: what is within the floor exits 0, and what cannot be a floor exits 2."""

import json
import shutil

import h5py
import pytest
from trace_samples import write_trace

from moeinspect import cli
from moeinspect.trace.reader import read_trace


@pytest.fixture
def traces(tmp_path):
    """a.h5, b.h5 and b2.h5, which are equal."""
    write_trace(tmp_path / "a.h5")
    for name in ("b.h5", "b2.h5"):
        shutil.copy(tmp_path / "a.h5", tmp_path / name)
    return tmp_path


def change(path, target, value):
    with h5py.File(path, "r+") as file:
        node, name = target
        if name is None:
            file[node][...] = value
        else:
            file[node].attrs[name] = value


def test_a_floor_of_another_model_is_refused(run, traces):
    change("b2.h5", ("model", "fingerprint"), "0" * 16)
    done = run("diff", "a.h5", "b.h5", "--noise-floor", "b2.h5")
    assert (done.status, done.stdout) == (2, "")
    assert "--noise-floor b2.h5: recorded with another model than b.h5: checkpoint" in done.error


def test_a_floor_that_is_no_trace_is_refused(run, traces):
    (traces / "b2.h5").write_text("no trace")
    done = run("diff", "a.h5", "b.h5", "--noise-floor", "b2.h5")
    assert (done.status, done.stdout) == (2, "")
    assert "b2.h5" in done.error


def test_the_report_is_never_written_over_the_floor(run, traces):
    done = run("diff", "a.h5", "b.h5", "--noise-floor", "b2.h5", "-o", "b2.h5", "-f")
    assert done.status == 2
    assert "b2.h5 is an input of this command" in done.error


def test_fast_runs_in_bf16_are_numerics_with_a_made_baseline_and_with_a_floor(run, tmp_path):
    lines = [{"id": f"r{i}", "input_ids": list(range(i + 1, 40 + i))} for i in range(4)]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    fast = ["capture", "builtin:random", "--prompts", "p.jsonl", "--max-new-tokens", "8", "-q"]
    fast += ["--dtype", "bfloat16", "--no-deterministic"]
    for name, size in (("a", "64"), ("b2", "16")):
        assert cli.main([*fast, "--chunked-prefill-size", size, "-o", f"{name}.h5"]) == 0
    done = run("diff", "a.h5", "--keep-baseline", "b.h5", "--format", "json")
    report = json.loads(done.stdout)
    assert (done.status, report["verdict"]) == (0, "numerics")
    assert report["counts"]["set_mismatch_cells"] > 0
    done = run("diff", "a.h5", "b.h5", "--noise-floor", "b2.h5", "--format", "json")
    assert (done.status, json.loads(done.stdout)["verdict"]) == (0, "numerics")
    shutil.copy(tmp_path / "b.h5", tmp_path / "copy.h5")
    done = run("diff", "b.h5", "b.h5", "--noise-floor", "copy.h5")
    assert done.status == 0
    assert "the noise floor is 0: B and copy.h5 are equal" in done.stdout


def test_places_that_rounding_turned_over_in_one_request_are_judged_by_the_baselines_weights(run, tmp_path):
    text = "the cat sat on the mat and the cat sat on the mat and"
    (tmp_path / "one.jsonl").write_text(json.dumps({"id": "one", "prompt": text}) + "\n")
    options = ["--prompts", "one.jsonl", "--max-new-tokens", 8, "--dtype", "bfloat16", "--no-deterministic"]
    assert run("capture", *options, "-o", "t.h5").status == 0
    done = run("diff", "t.h5", "--keep-baseline", "b.h5")
    assert done.status == 0 and "numerics" in done.stdout
    assert read_trace(tmp_path / "b.h5").rows.weights is not None
