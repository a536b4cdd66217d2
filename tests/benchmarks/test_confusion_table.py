"""What the confusion table counts: found, missed, inert, first, among three, false alarms."""

import os
import random
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from confusion_table.outcomes import Outcome, failed_goals, tally
from confusion_table.plan import ORACLE, Plan
from confusion_table.pool import Budget, Pool
from confusion_table.printing import table
from confusion_table.running import run_scene
from confusion_table.scenes import Scene, draw_scene
from confusion_table.triggers import TRIGGERS
from confusion_table.worker import Begun

from moeinspect.runtime.memory.page_allocator import PAGE_SIZE

FOUND = Outcome(
    "f0.0", "tp-shard", "m", "run it", verdict="findings", causes=("tp-shard",), confidences=(0.9,)
)
JOINED = replace(FOUND, causes=("no-merge|tp-shard",))
THIRD = replace(FOUND, causes=("no-merge", "read-early", "tp-shard"), confidences=(0.5, 0.4, 0.3))
FOURTH = replace(FOUND, causes=("a", "b", "c", "tp-shard"), confidences=(0.5, 0.4, 0.3, 0.2))
MISSED = replace(FOUND, verdict="clean", causes=(), confidences=())
INERT = replace(MISSED, same=True)
NOT_RUN = replace(MISSED, note="error: no such file")
CLEAN = Outcome("h0.0", "", "m", "run it", verdict="clean", same=True)
ALARM = replace(CLEAN, key="h0.1", verdict="findings", causes=("unknown",), confidences=(0.2,))
NUMERICS = replace(ALARM, verdict="numerics")


@pytest.mark.parametrize(
    ("one", "state", "rank"),
    [
        (FOUND, "found", 1),
        (JOINED, "found", 1),
        (THIRD, "found", 3),
        (MISSED, "missed", 0),
        (replace(MISSED, verdict="numerics"), "missed", 0),
        (INERT, "inert", 0),
        (replace(FOUND, same=True), "alarm", 1),
        (NOT_RUN, "not run", 0),
        (CLEAN, "clean", 0),
        (ALARM, "alarm", 0),
        (NUMERICS, "alarm", 0),
    ],
)
def test_each_run_is_one_of_these(one, state, rank):
    assert (one.state, one.rank) == (state, rank)


def test_inert_runs_are_neither_found_nor_missed():
    total = tally([FOUND, FOUND, JOINED, THIRD, FOURTH, MISSED, INERT, INERT, NOT_RUN])
    assert (total.runs, total.effective) == (9, 6)
    assert (total.states["found"], total.states["missed"], total.states["inert"]) == (5, 1, 2)
    assert (total.first, total.alone, total.among) == (3, 2, 4)
    assert total.first_causes == {"tp-shard": 2, "no-merge|tp-shard": 1, "no-merge": 1, "a": 1}


@pytest.mark.parametrize(
    ("outcomes", "word"),
    [
        ([FOUND] * 20 + [MISSED], "1 of 21"),
        ([FOUND] * 18 + [THIRD], "first in 18 of 19"),
        ([FOUND] * 99 + [FOURTH], "among"),
        ([FOUND, ALARM], "1 false alarms"),
        ([FOUND, NUMERICS], "1 false alarms"),
        ([FOUND, replace(FOUND, same=True)], "1 false alarms"),
        ([CLEAN, NOT_RUN], "1 runs gave no report"),
        ([CLEAN] * 9, "fewer than 10"),
    ],
)
def test_each_goal_can_be_missed_by_itself(outcomes, word):
    failed = failed_goals(outcomes, fewest_healthy=10 if outcomes == [CLEAN] * 9 else 0)
    assert len(failed) == 1 and word in failed[0]
    assert any(line.startswith("GOAL MISSED") for line in table(outcomes, fewest_healthy=10))


def test_goals_that_are_met_are_not_called_missed():
    outcomes = [FOUND] * 38 + [THIRD, INERT] + [CLEAN] * 10
    assert failed_goals(outcomes, fewest_healthy=10) == []
    assert not any("GOAL" in line for line in table(outcomes, fewest_healthy=10))


def test_runs_that_went_wrong_are_listed_with_their_keys_and_commands():
    text = "\n".join(table([FOUND, replace(THIRD, key="f7.1"), ALARM]))
    assert "other cause first: f7.1  tp-shard  run it" in text
    assert "false alarm: h0.1  (healthy)  run it" in text
    assert "f0.0" not in text


def test_a_scene_is_drawn_again_from_its_seed(tmp_path):
    one, other = (draw_scene(random.Random("5/h/3"), tmp_path / name, ["drawn"]) for name in "ab")
    for name in ("prompts.jsonl", "target/model.safetensors", "draft/config.json"):
        assert (one.folder / name).read_bytes() == (other.folder / name).read_bytes()
    assert one.sampling == other.sampling


@pytest.mark.parametrize("seed", range(20))
def test_what_brings_stale_slots_out_has_to_leave_the_device_and_is_asked_for_again(tmp_path, seed):
    rng, trigger = random.Random(seed), TRIGGERS["stale-slot"]
    scene = Scene(tmp_path, "builtin:tiny", (), "", (), longest=0, plain=False, vocab=10**6)
    prompts = list(trigger.prompts(rng, scene.vocab))
    switches = trigger.switches(rng, {}, scene.with_prompts("families", prompts))
    begins = [tuple(one["input_ids"][:PAGE_SIZE]) for one in prompts]
    assert min(begins.count(one) for one in begins) >= 4
    distinct = {token for one in prompts for token in one["input_ids"]}
    assert len(distinct) > switches["num_kv_slots"]
    assert switches["host_kv_slots"] > len(distinct)


def test_a_drawn_healthy_run_is_clean_and_a_fault_is_found(tmp_path):
    plan = Plan(seed=5, faults=("init-order",), models=(str(ORACLE / "qwen3_moe"),))
    (healthy,) = run_scene(plan, "h", 3, tmp_path / "healthy", only=[0])
    (faulty,) = run_scene(plan, "f", 2, tmp_path / "faulty", only=[0])
    assert (healthy.state, faulty.state, faulty.rank) == ("clean", "found", 1)


def _hangs_in_every_second_scene(plan, folder, pipe):
    """In place of a table's process: the run that hangs has started a process, and ignores SIGTERM."""
    os.setsid()
    pipe.send(None)
    while (task := pipe.recv()) is not None:
        one = replace(CLEAN, key=f"h{task.number}.0")
        pipe.send(Begun(replace(one, verdict="")))
        if task.number % 2:
            child = subprocess.Popen(["sleep", "60"])
            Path(plan.models[0]).write_text(str(child.pid))
            time.sleep(60)
        if task.number == 2:
            os._exit(7)
        pipe.send(one)
        pipe.send(None)


def test_what_hangs_or_dies_is_named_and_ended_and_the_rest_is_told(tmp_path):
    pid = tmp_path / "pid"
    start = time.time()
    budget = Budget(deadline=start + 60, scenes=3, grace=0)
    plan = Plan(seed=0, faults=(), models=(str(pid),))
    pool = Pool(plan, ["h"], 1, budget, work=_hangs_in_every_second_scene, longest_run=0.3)
    outcomes = {one.key: one for one in pool.outcomes()}
    assert time.time() - start < 20
    assert {key: one.state for key, one in outcomes.items()} == {
        "h0.0": "clean",
        "h1.0": "not run",
        "h2.0": "not run",
    }
    assert "killed" in outcomes["h1.0"].note and "ended with 7" in outcomes["h2.0"].note
    assert _is_gone(int(pid.read_text()))


def _is_gone(pid):
    """Nobody may have reaped it yet."""
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z"
