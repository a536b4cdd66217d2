"""Faults that need special requests bring them along: named on the command line alone, they show."""

import json

import pytest

from moeinspect.runtime.faults import FAULTS
from moeinspect.trace.reader import read_trace

SHOWS = {
    "stale-slot": "stale-rows",
    "surplus-after-stop": "surplus-rows",
    "prefill-only-short": "missing-rows",
    "batch-index-swap": "missing-request",
    "padded-rows": "repeated-rows",
}
"""The rule that finds each of them in the trace alone."""


def test_every_fault_with_traffic_is_here():
    assert SHOWS.keys() == {name for name, fault in FAULTS.items() if fault.traffic}


@pytest.mark.parametrize("name", SHOWS)
def test_a_fault_shows_without_a_prompts_file(run, tmp_path, name):
    done = run("capture", "--fault", name, "--max-new-tokens", 8, "-o", "t.h5")
    assert done.status == 0
    traffic = FAULTS[name].traffic
    assert f"--fault {name} brings --traffic {traffic}: " in done.stderr
    assert read_trace(tmp_path / "t.h5").run.run_config["traffic"] == [traffic]
    checked = run("check-duplicates", "t.h5", "--format", "json")
    assert checked.status == 1
    errors = {one["rule"] for one in json.loads(checked.stdout)["findings"] if one["severity"] != "note"}
    assert SHOWS[name] in errors


@pytest.mark.parametrize("traffic", sorted({fault.traffic for fault in FAULTS.values() if fault.traffic}))
def test_the_same_traffic_without_the_fault_is_healthy(run, traffic):
    options = ["--host-kv-slots", 1024] if traffic == "shared-prefixes" else []
    options += ["--draft", "builtin:tiny-draft"] if traffic == "stops" else []
    options += ["--graph"] if traffic == "chunk-seams" else []
    assert run("capture", "--traffic", traffic, "--max-new-tokens", 8, "-o", "t.h5", *options).status == 0
    assert run("diff", "t.h5").status == 0
