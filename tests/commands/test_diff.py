"""`diff` end to end: clean runs are clean, faults are found, and everything around it behaves."""

import json
import shutil
from pathlib import Path

import h5py
import pytest
from safetensors.torch import load_file, save_file

from moeinspect import cli
from moeinspect.trace.reader import read_trace

CHECKPOINT = Path(__file__).parents[1] / "data" / "oracle" / "checkpoints" / "qwen3_moe"
TEXT = [
    {"id": f"text-{i}", "prompt": text} for i, text in enumerate(("Hello", "A longer prompt of text, 12 3"))
]
IDS = [{"id": f"ids-{i}", "input_ids": list(range(1, n))} for i, n in enumerate((3, 20, 70, 9, 41))]
DRAFT_MOE_LAYERS = {1, 2}
TARGET_MOE_LAYERS = {1, 2, 3, 4, 5}


def capture(folder, name, *options, lines=(*TEXT, *IDS)):
    """Records a trace in `folder` and returns its path."""
    prompts, output = folder / f"{name}.jsonl", folder / f"{name}.h5"
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    argv = ["capture", "--prompts", prompts, "-o", output, "-q", "--max-new-tokens", 12, *options]
    assert cli.main([str(arg) for arg in argv]) == 0
    return output


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A trace with everything on, recorded once for the tests that do not change it."""
    options = ["--disagg", "--draft", "builtin:tiny-draft", "--weights"]
    return capture(tmp_path_factory.mktemp("recorded"), "everything", *options)


@pytest.fixture
def trace(recorded, tmp_path):
    """A copy of that trace in the folder where commands run."""
    shutil.copy(recorded, tmp_path / "a.h5")
    return "a.h5"


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("running", "chunk", "temperature"),
    [(1, 8, 1), (4, 64, 0), (4, 8, 0), (16, 64, 1), (16, 8, 0), (1, 64, 0)],
)
def test_everything_on_is_clean_against_target_only(run, tmp_path, running, chunk, temperature):
    options = [
        "--overlap",
        "--disagg",
        "--draft",
        "builtin:tiny-draft",
        "--weights",
        "--temperature",
        temperature,
    ]
    sizes = ["--max-running-requests", running, "--chunked-prefill-size", chunk]
    capture(tmp_path, "a", *options, *sizes)
    done = run("diff", "a.h5")
    assert done.status == 0
    assert done.stdout.splitlines()[-1].startswith("clean: ")
    assert done.stderr == "Next: moeinspect diff a.h5 --keep-baseline a-baseline.h5\n"


def test_a_checkpoint_from_disk_is_clean_too(run, tmp_path):
    run("capture", CHECKPOINT, "--help")
    prompts = tmp_path / "p.jsonl"
    prompts.write_text("".join(json.dumps(line) + "\n" for line in IDS))
    argv = ["--prompts", prompts, "-o", "a.h5", "--disagg", "--dtype", "bfloat16", "--max-new-tokens", 6]
    assert run("capture", CHECKPOINT, *argv).status == 0
    assert run("diff", "a.h5").status == 0


def test_the_report_as_json_tells_what_was_compared(run, trace):
    done = run("diff", trace, "--format", "json")
    report = json.loads(done.stdout)
    rows = len(read_trace(trace).rows)
    assert (done.status, report["verdict"], report["command"]) == (0, "clean", "diff")
    assert report["counts"]["rows_compared"] == rows
    assert report["counts"]["cells_compared"] == rows * len(TARGET_MOE_LAYERS)
    assert [one["path"] for one in report["inputs"]] == ["a.h5", "(target-only baseline)"]
    assert {one["layer"] for one in report["layers"]} == TARGET_MOE_LAYERS
    assert done.stderr == ""


def test_a_draft_that_is_captured_shows_in_its_layers_and_no_other(run, tmp_path):
    capture(tmp_path, "a", "--fault", "draft-capture", "--draft", "builtin:tiny-draft")
    done = run("diff", "a.h5", "--format", "json")
    report = json.loads(done.stdout)
    assert done.status == 1
    assert {one["layer"] for one in report["layers"] if one["set_mismatch"]} == DRAFT_MOE_LAYERS
    assert any("draft-capture" in one["cause"].split("|") for one in report["diagnoses"])


def test_prompt_rows_that_were_never_finalized_are_found_exactly(run, tmp_path):
    path = capture(tmp_path, "a", "--fault", "skip-finalize-prefill")
    trace = read_trace(path)
    done = run("check-duplicates", "a.h5", "--format", "json")
    report = json.loads(done.stdout)
    zeros = {f["request"]: f for f in report["findings"] if f["rule"] == "zero-rows"}
    assert done.status == 1
    assert set(zeros) == set(trace.requests.id.tolist())
    for position, name in enumerate(trace.requests.id.tolist()):
        assert zeros[name]["rows"] == [0, int(trace.requests.prompt_len[position])]
        assert set(zeros[name]["layers"]) == TARGET_MOE_LAYERS
    assert any("skip-finalize-prefill" in one["cause"].split("|") for one in report["diagnoses"])
    assert run("diff", "a.h5").status == 1


def test_the_same_fault_changes_nothing_without_overlap(run, tmp_path):
    capture(tmp_path, "a", "--fault", "skip-finalize-prefill", "--disagg", "--no-overlap")
    assert run("check-duplicates", "a.h5").status == 0
    assert run("diff", "a.h5").status == 0


@pytest.mark.parametrize("fault", ["no-merge", "buffer-reuse"])
def test_other_faults_are_found_with_their_cause(run, tmp_path, fault):
    capture(tmp_path, "a", "--fault", fault)
    done = run("diff", "a.h5", "--format", "json")
    assert done.status == 1
    assert any(fault in one["cause"].split("|") for one in json.loads(done.stdout)["diagnoses"])


def test_the_report_does_not_know_what_was_injected(run, tmp_path):
    path = capture(tmp_path, "a", "--fault", "skip-finalize-prefill")
    told = run("check-duplicates", "a.h5", "--format", "json").stdout
    with h5py.File(path, "r+") as file:
        file.attrs.modify("injected_faults", "[]")
    assert run("check-duplicates", "a.h5", "--format", "json").stdout == told


def test_a_trace_is_the_same_as_itself(run, trace):
    assert run("diff", trace, trace).status == 0


def test_a_kept_baseline_serves_again(run, trace, tmp_path):
    done = run("diff", trace, "--keep-baseline", "base.h5")
    assert (done.status, done.stderr) == (0, "Next: moeinspect diff a.h5 base.h5\n")
    assert read_trace(tmp_path / "base.h5").run.baseline_of == "a.h5"
    again = run("diff", trace, "base.h5")
    assert (again.status, again.stderr) == (0, "Next: moeinspect diff a.h5 base.h5 --format json\n")
    assert again.stdout.splitlines()[-1] == done.stdout.splitlines()[-1]
    taken = run("diff", trace, "--keep-baseline", "base.h5")
    assert (taken.status, taken.stdout) == (2, "")
    assert "base.h5 exists" in taken.error


def test_a_baseline_is_never_kept_over_an_input(run, trace, tmp_path):
    before = (tmp_path / trace).read_bytes()
    done = run("diff", trace, "--keep-baseline", trace, "-f")
    assert done.status == 2
    assert "a.h5 is an input of this command" in done.error
    assert (tmp_path / trace).read_bytes() == before


def test_keep_baseline_beside_a_baseline_is_refused(run, trace):
    done = run("diff", trace, trace, "--keep-baseline", "b.h5")
    assert done.status == 2
    assert "--keep-baseline with a BASELINE" in done.error


def test_no_baseline_is_left_behind(run, trace, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temp"))
    (tmp_path / "temp").mkdir()
    assert run("diff", trace).status == 0
    assert list((tmp_path / "temp").iterdir()) == []


def test_the_report_goes_to_a_file_on_request(run, trace, tmp_path):
    done = run("diff", trace, trace, "-o", "report.txt", "--color", "always")
    assert (done.status, done.stdout) == (0, "")
    assert done.stderr.splitlines()[0] == "Wrote report.txt"
    text = (tmp_path / "report.txt").read_text()
    assert text.splitlines()[-1].startswith("clean: ")
    assert "\x1b" not in text


def test_a_model_that_changed_on_disk_is_refused(run, tmp_path):
    shutil.copytree(CHECKPOINT, tmp_path / "model")
    (tmp_path / "p.jsonl").write_text('{"id": "a", "input_ids": [1, 2, 3]}')
    assert run("capture", "model", "--prompts", "p.jsonl", "-o", "a.h5", "--max-new-tokens", 2).status == 0
    assert run("diff", "a.h5").status == 0
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    tensors["model.norm.weight"] *= 2
    save_file(tensors, tmp_path / "model" / "model.safetensors")
    done = run("diff", "a.h5")
    assert (done.status, done.stdout) == (2, "")
    assert f"{tmp_path / 'model'}: not the model that a.h5 was recorded with" in done.error


def test_a_model_that_is_gone_is_refused(run, tmp_path):
    shutil.copytree(CHECKPOINT, tmp_path / "model")
    (tmp_path / "p.jsonl").write_text('{"id": "a", "input_ids": [1, 2, 3]}')
    assert run("capture", "model", "--prompts", "p.jsonl", "-o", "a.h5", "--max-new-tokens", 2).status == 0
    shutil.rmtree(tmp_path / "model")
    done = run("diff", "a.h5")
    assert (done.status, done.stdout) == (2, "")
    assert str(tmp_path / "model") in done.error


def test_a_trace_without_an_ended_request_is_valid(run, tmp_path, trace):
    with h5py.File(tmp_path / trace, "r+") as file:
        file.attrs["complete"] = 0
        for group in ("requests", "events"):
            for dataset in file[group].values():
                dataset.resize(0, axis=0)
        for dataset in file["rows"].values():
            if isinstance(dataset, h5py.Dataset):
                dataset.resize(0, axis=0)
        file["tokens"].resize(0, axis=0)
    done = run("check-duplicates", trace)
    assert done.status == 0
    assert done.stdout.splitlines()[-1].startswith("clean: 0 rows")
    assert "no request had ended" in done.stdout
    assert done.stderr == ""
    done = run("diff", trace)
    assert done.status == 2
    assert done.error.startswith("a.h5: nothing to compare: no request had ended")


def test_several_traces_make_one_report(run, trace, tmp_path):
    shutil.copy(tmp_path / trace, tmp_path / "b.h5")
    done = run("check-duplicates", trace, "b.h5", "--format", "json")
    assert done.status == 0
    assert [one["path"] for one in json.loads(done.stdout)["inputs"]] == ["a.h5", "b.h5"]


def test_github_format_annotates_findings(run, tmp_path):
    capture(tmp_path, "a", "--fault", "no-merge")
    done = run("check-duplicates", "a.h5", "--format", "github")
    assert done.status == 1
    assert any(line.startswith("::error") for line in done.stdout.splitlines())
    assert done.stderr == ""


def test_the_report_is_never_written_over_the_kept_baseline(run):
    assert run("capture", "-o", "t.h5", "--max-new-tokens", 1).status == 0
    done = run("diff", "t.h5", "--keep-baseline", "k.h5", "-o", "./k.h5", "-f")
    assert done.status == 2 and "--keep-baseline" in done.error and not Path("k.h5").exists()


def test_a_trace_for_whose_rows_nobody_asked_costs_no_baseline(run, prompts):
    path = prompts({"prompt": "Hi", "return_routed_experts": False, "max_new_tokens": 2})
    assert run("capture", "--prompts", path, "-o", "t.h5").status == 0
    done = run("diff", "t.h5")
    assert done.status == 2 and "asked for" in done.error
