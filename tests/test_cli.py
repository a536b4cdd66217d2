"""Exit statuses, one-line errors, options of later versions, and docs for every option."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from moeinspect import cli
from moeinspect.commands._binding import ALIASES, canonical
from moeinspect.errors import EngineError, InputError
from moeinspect.runtime.faults import FAULTS
from moeinspect.runtime.traffic import TRAFFICS

COMMANDS = ("capture", "diff", "check-duplicates", "disagg-sim", "bisect", "explain")
DOCS = Path(__file__).parents[1] / "docs" / "command-line.md"


@pytest.fixture
def run(capfd, tmp_path, monkeypatch):
    """Runs a command line in an empty folder: exit status, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*argv):
        status = cli.main(argv)
        return (status, *capfd.readouterr())

    return run


def error_line(stderr: str) -> str:
    (line,) = stderr.splitlines()
    assert line.startswith("moeinspect: error: ")
    return line.removeprefix("moeinspect: error: ")


def test_version(run):
    status, stdout, _ = run("--version")
    assert (status, stdout.split()[0]) == (0, "moeinspect")
    assert run("diff", "--version")[:2] == (0, stdout)


def test_no_command_shows_the_help_and_is_trouble(run):
    status, stdout, stderr = run()
    assert (status, stdout) == (2, "")
    assert all(name in stderr for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_exit_0_on_stdout(run, name):
    status, stdout, stderr = run(name, "-h")
    assert (status, stderr) == (0, "")
    assert "Usage: moeinspect " + name in stdout


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["capure"], "No such command 'capure'. Did you mean 'capture'?; try `moeinspect --help`"),
        (["capture", "--draf", "x"], "No such option: --draf (Possible options: --draft"),
        (["capture", "--seed"], "Option '--seed' requires an argument"),
        (["capture", "--seed", "x"], "Invalid value for '--seed'"),
        (["capture", "a", "b"], "Got unexpected extra argument"),
        (["capture", "--dtype", "float16"], "'float16' is not one of 'float32', 'bfloat16'"),
        (["capture", "--max-new-tokens", "-1"], "must be at least 0, not -1"),
        (["capture", "--temperature", "nan"], "must be at least 0, not nan"),
        (["capture", "--temperature", "inf"], "must be at least 0, not inf"),
        (["capture", "--temperature", "-1"], "must be at least 0, not -1"),
        (["capture", "--top-p", "0"], "must be above 0 and at most 1, not 0"),
        (["capture", "--seed", str(2**63)], "at most 9223372036854775807"),
        (["capture", "--threads", str(10**11)], "must be at least 1 and at most 1024, not 100000000000"),
        (["capture", "--num-kv-slots", "0"], "must be at least 1, not 0"),
        (["diff"], "Missing argument 'TRACE'; try `moeinspect diff --help`"),
        (["diff", "a.h5", "--max-mismatch", "1.5"], "must be at least 0 and at most 1, not 1.5"),
        (["check-duplicates"], "Missing argument 'TRACE'"),
        (["bisect"], "Missing argument 'TRACE'"),
        (["bisect", "a.h5", "--max-runs", "0"], "must be at least 1 and at most 10000, not 0"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_2(run, argv, message):
    status, stdout, stderr = run(*argv)
    assert (status, stdout) == (2, "")
    assert message in error_line(stderr)


LATER_RUN = [
    ["--transfer", "nccl"],
    ["--device", "cuda"],
    ["--device", "cuda:1"],
    ["--engine", "transformers"],
    ["--engine", "sglang"],
    ["--engine", "vllm"],
    ["--url", "http://localhost:1"],
    ["--replay", "t.h5"],
]


@pytest.mark.parametrize(
    "argv",
    [
        *(["capture", *options] for options in LATER_RUN),
        *(["disagg-sim", *options] for options in LATER_RUN),
        ["diff", "a.h5", "--model", "folder"],
        ["check-duplicates", "a.h5", "--model", "folder"],
    ],
    ids=" ".join,
)
def test_what_a_later_version_brings_is_refused_by_name(run, tmp_path, argv):
    status, stdout, stderr = run(*argv)
    line = error_line(stderr)
    option = next(canonical([word])[0] for word in argv if word.startswith("--"))
    assert (status, stdout) == (2, "")
    assert line.startswith(option)
    assert "is not built yet in this version; " in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--target-only", "--overlap"], "--target-only and --overlap contradict each other"),
        (["--target-only", "--disagg"], "--target-only and --disagg contradict each other"),
        (["--target-only", "--draft", "builtin:tiny-draft"], "--target-only and --draft builtin:tiny-draft"),
        (["--target-only", "--backend", "triton"], "--target-only and --backend triton contradict"),
        (["--target-only", "--max-running-requests", "4"], "--max-running-requests 4 contradict each other"),
        (["--target-only", "--fault", "no-merge"], "--target-only and --fault contradict each other"),
        (["--target-only", "--stream"], "--target-only and --stream contradict each other"),
        (
            ["--decode-workers", "2"],
            "--decode-workers 2: prefill and decode are in one process; add --disagg",
        ),
        (["--traffic", "stops", "--prompts", "x"], "--prompts and --traffic contradict each other"),
        (["--no-prefix-cache", "--host-kv-slots", "8"], "--host-kv-slots 8: there is no prefix cache; add"),
        (["--adaptive-draft"], "--adaptive-draft: there is no draft; name one with --draft or leave it out"),
        (["--target-only", "--prefix-cache"], "--target-only and --prefix-cache contradict each other"),
        (["--target-only", "--graph"], "--target-only and --graph contradict each other"),
        (["--target-only", "--host-kv-slots", "8"], "--target-only and --host-kv-slots 8 contradict"),
        (["--weight-update", "x"], "--weight-update x: not a step and a model; write such as 12:builtin"),
        (["--weight-update", "-1:builtin:tiny"], "--weight-update -1:builtin:tiny: not a step and a model"),
        (["--weight-update", "4:a", "--weight-update", "4:b"], "the steps do not ascend"),
        (["--weight-update", "4:a", "--disagg"], "weights are updated in one process only"),
        (
            ["--weight-update", "4:builtin:tiny", "--target-only"],
            "--target-only and --weight-update 4:builtin",
        ),
        (["--stop", ""], "--stop: the text is empty; give at least one character"),
        (["--draft-topk", "2"], "--draft-topk 2: there is no draft; name one with --draft or leave it out"),
        (["--speculative-eagle-topk", "2"], "--draft-topk 2: there is no draft"),
        (["--target-only", "--draft-topk", "2"], "--target-only and --draft-topk 2 contradict each other"),
        (["--traffic", "jam"], "--traffic jam: no such traffic; known traffics: shared-prefixes"),
        (["--fault", "no-such"], "--fault no-such: no such fault; known faults: skip-finalize-prefill"),
        (["--backend", "cutlass"], "--backend cutlass: no such top-k backend; known: torch, triton, bypass"),
        (["--device", "tpu"], "--device tpu: no such device; use cpu"),
    ],
)
def test_options_that_contradict_each_other_are_refused(run, argv, message):
    status, _, stderr = run("capture", *argv)
    assert status == 2
    assert message in error_line(stderr)


@pytest.mark.parametrize("argv", [["--no-disagg"], ["--target-only"]])
def test_disagg_sim_refuses_what_would_not_be_disaggregated(run, argv):
    status, _, stderr = run("disagg-sim", *argv)
    assert status == 2
    assert f"disagg-sim and {argv[0]} contradict each other" in error_line(stderr)


def test_aliases_are_written_out_up_to_a_double_dash():
    args = [
        "--disable-overlap-schedule",
        "--speculative-num-draft-tokens=3",
        "--",
        "--speculative-eagle-topk",
    ]
    assert canonical(args) == ["--no-overlap", "--num-draft-tokens=3", "--", "--speculative-eagle-topk"]


def test_an_alias_counts_as_the_option_it_stands_for(run):
    _, _, stderr = run("capture", "--fault", "no-merge", "--disable-overlap-schedule", "--seed", "x")
    assert "Invalid value for '--seed'" in error_line(stderr)
    status, _, stderr = run(
        "capture", "--target-only", "--disable-overlap-schedule", "--draft", "none", "/nowhere"
    )
    assert status == 2
    assert "contradict" not in stderr


def test_faults_are_listed(run):
    status, stdout, stderr = run("capture", "--list-faults")
    assert (status, stderr) == (0, "")
    lines = stdout.splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == list(FAULTS)
    assert "with" not in lines[0] and lines[1].split() == ["needs", "--disagg", "--overlap"]


def test_faults_are_listed_as_json_with_what_they_need(run):
    status, stdout, _ = run("capture", "--list-faults", "--format", "json")
    faults = {fault["name"]: fault for fault in json.loads(stdout)["faults"]}
    assert status == 0 and list(faults) == list(FAULTS)
    assert faults["skip-finalize-prefill"]["needs"] == {"disagg": True, "overlap": True}
    assert {fault["traffic"] for fault in faults.values()} <= {"", *TRAFFICS}


def failing(monkeypatch, error):
    """Makes every command fail with `error`."""

    def fail(*_args, **_values):
        raise error

    monkeypatch.setattr(cli, "_run", fail)


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (InputError("a.h5: broken", "make another"), 2, "a.h5: broken; make another"),
        (EngineError("a worker\ndied"), 2, "a worker died"),
        (ValueError("x"), 2, "ValueError: x; this is a bug, MOEINSPECT_DEBUG=1 shows where"),
        (SystemExit(1), 2, "SystemExit: 1"),
        (MemoryError(), 2, "MemoryError"),
        (OSError(28, "No space left on device", "x.h5"), 2, "x.h5: No space left on device"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_whatever_happens_is_one_line_and_the_right_status(run, monkeypatch, error, status, message):
    failing(monkeypatch, error)
    got, stdout, stderr = run("capture")
    assert (got, stdout) == (status, "")
    assert error_line(stderr).startswith(message)


def test_a_traceback_is_shown_on_request(run, monkeypatch):
    failing(monkeypatch, ValueError("x"))
    monkeypatch.setenv("MOEINSPECT_DEBUG", "1")
    status, _, stderr = run("capture")
    assert status == 2
    assert "Traceback" in stderr


def test_help_into_a_closed_pipe_is_exit_0():
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-m", "moeinspect", "capture", "--help"],
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, "")


def parameters(name):
    group = typer.main.get_command(cli.app)
    return [p for p in group.commands[name].params if not p.hidden]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_help_and_stands_in_the_docs(name):
    text = DOCS.read_text(encoding="utf-8")
    section = re.search(rf"^## `moeinspect {name}.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert section, f"docs/command-line.md has no section on {name}"
    shared = re.search(r"^## Options of every command.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    documented = set(re.findall(r"`(-[-\w]*)", section[0] + shared[0]))
    if name == "disagg-sim":
        capture = re.search(r"^## `moeinspect capture.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        documented |= set(re.findall(r"`(-[-\w]*)", capture[0]))
    for parameter in parameters(name):
        assert parameter.help, f"{parameter.name} of {name} has no help"
        if parameter.param_type_name == "option":
            missing = {*parameter.opts, *parameter.secondary_opts} - documented
            assert not missing, f"{name}: {missing} not in docs/command-line.md"


def test_the_docs_name_no_option_that_does_not_exist():
    text = DOCS.read_text(encoding="utf-8")
    known = {o for name in COMMANDS for p in parameters(name) for o in (*p.opts, *p.secondary_opts)}
    assert set(re.findall(r"`(--?[a-z][-\w]*)", text)) <= known | {"-h", "--help"} | set(ALIASES)
