"""What the confusion table counts: found, missed, inert, first, among three, false alarms."""

import random
from dataclasses import replace

import pytest
from confusion_table.outcomes import Outcome, failed_goals, tally
from confusion_table.printing import table
from confusion_table.running import Plan, run_scene
from confusion_table.scenes import ORACLE, draw_scene

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


def test_a_drawn_healthy_run_is_clean_and_a_fault_is_found(tmp_path):
    plan = Plan(seed=5, faults=("init-order",), models=(str(ORACLE / "qwen3_moe"),))
    (healthy,) = run_scene(plan, "h", 3, tmp_path / "healthy", only=[0])
    (faulty,) = run_scene(plan, "f", 5, tmp_path / "faulty", only=[0])
    assert (healthy.state, faulty.state, faulty.rank) == ("clean", "found", 1)
