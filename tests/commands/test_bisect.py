"""`bisect` end to end: the same requests and engine run again, and what brings the difference is named."""

import json
import shlex
import tempfile
from dataclasses import replace

import h5py
import pytest

from moeinspect.analysis.bisect.bisection import Trial
from moeinspect.analysis.findings import Diagnosis, Finding, InputSummary, Report
from moeinspect.commands import _bisecting
from moeinspect.commands._bisect_runs import Baselines, Runner
from moeinspect.commands._prompts import read_prompts, to_requests
from moeinspect.commands._recorded import recorded_run
from moeinspect.commands._requests_again import requests_again
from moeinspect.console import Console
from moeinspect.trace.reader import read_trace

MODEL = "builtin:random"
LINES = [
    {"id": f"r{i}", "input_ids": list(range(3, 3 + n)), "max_new_tokens": 4} for i, n in enumerate((9, 5))
]


@pytest.fixture
def capture(run, prompts):
    """Records a trace `t.h5` of two short prompts."""

    def capture(*options, lines=LINES, model=MODEL):
        argv = ["capture", model, "--prompts", prompts(*lines), "-o", "t.h5", "-f", "-q", *options]
        done = run(*argv)
        assert done.status == 0, done.stderr
        return "t.h5"

    return capture


def bisected(run, *argv):
    done = run("bisect", *argv, "--format", "json")
    return done, json.loads(done.stdout)


def sets_of(document):
    return [set(one["switches"]) for one in document["runs"]]


def test_both_switches_that_a_fault_needs_are_named_and_temporary_traces_are_gone(
    run, capture, tmp_path, monkeypatch
):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    path = capture("--fault", "verify-dropped", "--draft", "ngram")
    done, document = bisected(run, path)
    assert (done.status, document["outcome"]) == (1, "switches")
    assert set(document["smallest"]) == {"overlap", "draft"}
    assert next(iter(document["switches"])) == "draft"  # the diagnosis' own
    assert "verify-dropped" in document["diagnoses"][0]["cause"].split("|")
    for fewer in ({"overlap"}, {"draft"}):
        verdicts = [one["verdict"] for one in document["runs"] if set(one["switches"]) == fewer]
        assert verdicts == ["clean", "clean"]
    assert all(one["rows_compared"] == len(read_trace(tmp_path / path).rows) for one in document["runs"])
    assert not [one for one in (tmp_path / "temporary").iterdir() if not one.name.startswith("pymp-")]
    assert str(tmp_path / "prompts.jsonl") in document["show"] and document["notes"] == []


def test_the_command_that_it_prints_shows_the_difference(run, capture, tmp_path):
    capture("--fault", "kernel-uncaptured")
    done = run("bisect", "t.h5")
    assert done.status == 1
    assert done.stdout.splitlines()[-1] == (
        "switches: a difference comes with --backend bypass, and with nothing less; "
        "nothing is left without it; 4 runs"
    )
    assert "run 1: no switch: clean" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("Next: moeinspect explain ")
    command = next(line for line in done.stdout.splitlines() if line.startswith("show ")).removeprefix(
        "show "
    )
    again, look = (shlex.split(part)[1:] for part in command.split(" && "))
    assert run(*again).status == 0
    config = read_trace(tmp_path / again[-1]).run.run_config
    assert (config["backend"], config["overlap"], config["prefix_cache"]) == ("bypass", False, False)
    looked = run(*look)
    assert looked.status == 1
    assert looked.stderr.splitlines()[-1] == f"Next: moeinspect diff {again[-1]} --format json"


def test_a_diff_with_a_cause_in_doubt_proposes_it(run, capture, tmp_path):
    path = capture("--fault", "kernel-uncaptured")
    (tmp_path / path).rename(tmp_path / "my trace.h5")
    done = run("diff", "my trace.h5", "my trace.h5")
    assert done.status == 1 and "|" in done.stdout
    assert done.stderr == "Next: moeinspect bisect 'my trace.h5'\n"


def test_what_a_request_asked_for_is_asked_again(run, capture):
    """Only a batch with and without opt-in, ending in one step, shows this."""
    lines = [
        {**line, "return_routed_experts": i % 2 == 1, "input_ids": [7, 8, i]}
        for i, line in enumerate(LINES * 2)
    ]
    lines = [{**line, "id": str(i)} for i, line in enumerate(lines)]
    path = capture("--fault", "batch-index-swap", "--ignore-eos", lines=lines)
    _, document = bisected(run, path)
    assert document["smallest"] == ["max_running_requests"]


def test_requests_come_again_as_they_were_asked(capture, prompts, tmp_path):
    lines = [
        {"id": "long", "input_ids": list(range(30)), "seed": 5, "max_new_tokens": 9},
        {"id": "none", "input_ids": [1, 2], "max_new_tokens": 0, "return_routed_experts": False},
        {"id": "many", "input_ids": [3], "n": 3, "max_new_tokens": 2},
        {"id": "away", "input_ids": [4, 5], "abort_after": 2},
        {"id": "stops", "input_ids": [6], "stop_token_ids": list(range(0, 200, 3))},
        {"id": "plain", "input_ids": [6]},
        {"id": "as plain", "input_ids": [8]},
    ]
    trace = read_trace(tmp_path / capture("--max-new-tokens", 3, "--ignore-eos", lines=lines))
    groups = trace.run.run_config["request_options"]
    assert groups[-1] == {"ids": ["plain", "as plain"]}
    console = Console.for_process()
    asked = to_requests(
        read_prompts(str(tmp_path / "prompts.jsonl"), console), None, max_new_tokens=3, ignore_eos=True
    )
    assert requests_again(trace, recorded_run(trace), console) == asked


def test_what_no_switch_removes_is_in_the_target(run, capture):
    path = capture("--fault", "prefill-only-short", lines=[{**LINES[0], "max_new_tokens": 0}])
    done, document = bisected(run, path)
    assert (done.status, document["outcome"], document["smallest"]) == (1, "target", [])
    assert sets_of(document) == [set()]


def test_a_clean_trace_has_nothing_to_search_for(run, capture):
    done, document = bisected(run, capture("--draft", "ngram"))
    assert (done.status, document["outcome"], document["runs"]) == (0, "clean", [])
    assert document["recorded"]["cells_differ"] == 0


def test_a_fault_that_is_not_in_the_engine_any_more_is_not_reproduced(run, capture, tmp_path):
    path = capture("--fault", "graph-static-rows", "--no-overlap", "--no-prefix-cache")
    with h5py.File(tmp_path / path, "r+") as file:
        file.attrs.modify("injected_faults", "[]")
    done, document = bisected(run, path)
    assert (done.status, document["outcome"], document["smallest"]) == (1, "not-reproduced", None)
    assert [one["verdict"] for one in document["runs"]] == ["clean"] * len(document["runs"])


def test_the_runs_are_counted(run, capture):
    path = capture("--fault", "kernel-uncaptured")
    done, document = bisected(run, path, "--max-runs", 1)
    assert (done.status, document["outcome"], document["smallest"]) == (1, "unfinished", None)
    assert len(document["runs"]) == 1


def test_another_engines_trace_is_refused_with_the_command_for_a_reference(run, capture, tmp_path):
    with h5py.File(tmp_path / capture(), "r+") as file:
        file.attrs.modify("engine", "sglang")
    done = run("bisect", "t.h5")
    assert (done.status, done.stdout) == (2, "")
    assert "recorded by sglang" in done.error
    assert "--target-only" in done.error and "moeinspect diff t.h5 reference.h5" in done.error


def test_a_model_that_changed_is_refused(run, capture, tmp_path):
    with h5py.File(tmp_path / capture(), "r+") as file:
        file["model"].attrs.modify("fingerprint", "another")
    done = run("bisect", "t.h5")
    assert done.status == 2 and "not the model that t.h5 was recorded with" in done.error


def test_options_that_are_none_are_refused(run, capture, tmp_path):
    path = tmp_path / capture("--fault", "init-order")
    config = read_trace(path).run.run_config
    for broken in ({"overlap": "yes"}, {"weight_updates": [3]}, {"request_options": [{"ids": ["r0"]}]}):
        with h5py.File(path, "r+") as file:
            file.attrs.modify("run_config", json.dumps({**config, **broken}))
        done = run("bisect", "t.h5")
        assert done.status == 2 and next(iter(broken)) in done.error


def test_requests_of_a_trace_that_does_not_tell_run_to_their_lengths(run, capture, tmp_path):
    path = tmp_path / capture("--fault", "init-order")
    config = {**read_trace(path).run.run_config}
    del config["request_options"], config["prompts"]
    with h5py.File(path, "r+") as file:
        file.attrs.modify("run_config", json.dumps(config))
    done, document = bisected(run, "t.h5")
    assert document["outcome"] == "target"
    assert "does not tell what its requests asked for" in done.stderr
    assert document["notes"] == ["PROMPTS.jsonl stands for the prompts that the trace was recorded with"]


PLACES = {"unknown": "zero", "read-early": "zero"}
"""Causes of the same places, by the request that is wrong there; each other cause has one of its own."""


def report_of(*causes):
    summary = InputSummary("t.h5", "local", 2, 20, 5, 4, 32, True)
    counts = {"rows_compared": 20, "cells_compared": 100, "set_mismatch_cells": 7 * len(causes)}
    diagnoses = tuple(Diagnosis(cause, 0.9, ("so it is",), "", "") for cause in causes)
    findings = tuple(
        Finding("set-mismatch", "error", "", 1, None, PLACES.get(cause, cause)) for cause in causes
    )
    verdict = "findings" if causes else "clean"
    return Report("diff", (summary, summary), verdict, counts, findings, (), diagnoses)


def fake_runs(monkeypatch, recorded, causes_of):
    """Runs that come to the causes that `causes_of(switches)` names; what was asked, in order."""
    asked = []

    def report(runner, switches):
        names = tuple(name for name in runner.order if name in switches)
        asked.append(names)
        runner.trials.append(Trial(names, report_of(*causes_of(switches)), 0.0))
        return runner.trials[-1].report

    monkeypatch.setattr(Runner, "report", report)
    monkeypatch.setattr(Baselines, "compare", lambda _self, _trace: report_of(*recorded))
    return asked


@pytest.mark.quick(1)
@pytest.mark.parametrize("named", [(), ("no-merge",), ("tree-rows", "stale-slot")])
def test_the_names_of_the_faults_reach_the_runs_and_nothing_else(
    capture, tmp_path, monkeypatch, capfd, named
):
    """The same answers of the runs give the same order, verdicts and names, whatever was injected."""
    trace = read_trace(tmp_path / capture("--fault", "verify-dropped"))
    trace = replace(trace, run=replace(trace.run, injected_faults=named))
    assert recorded_run(trace).faults == named
    cause = ("verify-dropped",)
    asked = fake_runs(monkeypatch, cause, lambda names: cause if {"draft", "overlap"} <= names else ())
    found = _bisecting.bisect_trace(trace, 40, Console.for_process())
    assert [set(one.switches) for one in found.sets] == [{"draft", "overlap"}]
    assert asked[:3] == [(), ("draft",), ("draft", "overlap")]
    assert [one.cause for one in found.causes] == ["verify-dropped"]


SEVERAL = {
    "apart": (
        {"draft": "draft-capture", "overlap": "buffer-reuse"},
        [{"draft"}, {"overlap"}],
        ["draft-capture", "buffer-reuse"],
    ),
    "one within the other": (
        {"overlap": "buffer-reuse", "overlap draft": "verify-dropped"},
        [{"overlap"}, {"overlap", "draft"}],
        ["buffer-reuse", "verify-dropped"],
    ),
    "one in the target": (
        {"": "init-order", "draft": "surplus-after-stop"},
        [set(), {"draft"}],
        ["init-order", "surplus-after-stop"],
    ),
}


@pytest.mark.parametrize(("bugs", "sets", "causes"), SEVERAL.values(), ids=SEVERAL)
def test_two_bugs_are_both_named(capture, tmp_path, monkeypatch, capfd, bugs, sets, causes):
    trace = read_trace(tmp_path / capture("--draft", "ngram"))
    fake_runs(
        monkeypatch,
        bugs.values(),
        lambda names: [cause for needs, cause in bugs.items() if set(needs.split()) <= names],
    )
    found = _bisecting.bisect_trace(trace, 40, Console.for_process())
    assert [set(one.switches) for one in found.sets] == sets
    assert [one.cause for one in found.causes] == causes
    assert (found.remains, found.notes) == ("nothing", ())
    assert [one.command.split()[-1] for one in found.sets] == ["t-bisected.h5", "t-bisected2.h5"]


def test_it_never_claims_more_than_its_runs_saw(capture, tmp_path, monkeypatch, capfd):
    trace = read_trace(tmp_path / capture("--draft", "ngram"))
    bugs = {"draft": "draft-capture", "overlap draft": "verify-dropped"}

    def causes_of(names):
        return [cause for needs, cause in bugs.items() if set(needs.split()) <= names]

    asked = fake_runs(monkeypatch, bugs.values(), causes_of)
    told = set()
    for max_runs in range(1, 12):
        asked.clear()
        found = _bisecting.bisect_trace(trace, max_runs, Console.for_process())
        told.add(found.remains)
        assert len(asked) <= max_runs
        sets = [set(one.switches) for one in found.sets]
        assert (found.remains == "nothing") == (sets == [{"draft"}, {"overlap", "draft"}])
    assert told == {"nothing", "untried"}


def test_a_cause_that_no_run_shows_is_noted(capture, tmp_path, monkeypatch, capfd):
    trace = read_trace(tmp_path / capture("--draft", "ngram"))
    fake_runs(
        monkeypatch, ("draft-capture", "stale-slot"), lambda names: ("draft-capture",) * ("draft" in names)
    )
    found = _bisecting.bisect_trace(trace, 40, Console.for_process())
    assert [set(one.switches) for one in found.sets] == [{"draft"}]
    assert found.notes == ("the trace looks like stale-slot, too, and no run did",)


def test_a_cause_that_is_another_name_of_the_same_difference_has_no_set_of_its_own(
    capture, tmp_path, monkeypatch, capfd
):
    trace = read_trace(tmp_path / capture("--draft", "ngram"))

    def causes_of(names):
        if "draft" not in names:
            return ()
        return ("read-early",) if "overlap" in names else ("unknown",)

    fake_runs(monkeypatch, ("read-early",), causes_of)
    found = _bisecting.bisect_trace(trace, 40, Console.for_process())
    assert [set(one.switches) for one in found.sets] == [{"draft"}]
