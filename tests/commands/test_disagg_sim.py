"""`disagg-sim` end to end: trace, timeline and verdict in one go."""

import json

from moeinspect.trace.reader import read_trace

NEXT = "Next: moeinspect diff tiny-disagg.h5 --keep-baseline tiny-disagg-baseline.h5\n"
LINES = [{"id": str(i), "input_ids": list(range(1, 10 + 7 * i))} for i in range(5)]


def test_it_shows_the_timeline_and_the_verdict(run, prompts, tmp_path):
    done = run("disagg-sim", "--prompts", prompts(*LINES), "--max-new-tokens", 8, "--weights")
    lines = done.stdout.splitlines()
    assert done.status == 0
    assert lines[0].startswith("Wrote tiny-disagg.h5: 5 requests")
    assert any("prefill-0" in line for line in lines)
    assert any("decode-0" in line for line in lines)
    assert lines[-1].startswith("clean: ")
    assert done.stderr == NEXT
    assert read_trace(tmp_path / "tiny-disagg.h5").run.run_config["disagg"] is True


def test_a_fault_makes_it_exit_1(run, prompts):
    options = ["--fault", "no-merge", "--max-new-tokens", 8]
    done = run("disagg-sim", "--prompts", prompts(*LINES), *options)
    assert done.status == 1
    assert done.stdout.splitlines()[-1].startswith("findings: ")
    assert done.stderr.endswith("Next: moeinspect diff tiny-disagg.h5 --format json\n")


def test_json_is_the_report_alone(run, prompts):
    options = ["--format", "json", "--max-new-tokens", 4, "-o", "t.h5"]
    done = run("disagg-sim", "--prompts", prompts(*LINES), *options)
    report = json.loads(done.stdout)
    assert (done.status, report["verdict"], report["inputs"][0]["path"]) == (0, "clean", "t.h5")
    assert done.stderr.startswith("Wrote t.h5: 5 requests")


def test_existing_output_is_kept(run, prompts, tmp_path):
    (tmp_path / "tiny-disagg.h5").write_text("mine")
    done = run("disagg-sim", "--prompts", prompts(*LINES))
    assert (done.status, done.stdout) == (2, "")
    assert "tiny-disagg.h5 exists" in done.error
    assert (tmp_path / "tiny-disagg.h5").read_text() == "mine"
