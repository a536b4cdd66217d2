"""The search names a set that differs and of which no switch can be spared, whatever the runs answer."""

import itertools
import random

import pytest

from moeinspect.analysis.bisect.search import Found, Search

SWITCHES = ("overlap", "draft", "disagg", "graph", "cache", "tier")


class Engine:
    """Runs differ under any of `bugs`, sets of switches; a race hides from the first runs of a set."""

    def __init__(self, *bugs, hides=0):
        self.bugs = [frozenset(bug) for bug in bugs]
        self.hides = hides
        self.runs = []

    def differs(self, switches):
        self.runs.append(switches)
        return self.runs.count(switches) > self.hides and any(bug <= switches for bug in self.bugs)


def settled(switches):
    """A host tier means nothing without a prefix cache."""
    return switches if "cache" in switches else switches - {"tier"}


def search(engine, order=SWITCHES, max_runs=100):
    return Search(order, engine.differs, settled, max_runs=max_runs).find()


EVERY_BUG = [
    frozenset(bug)
    for size in (1, 2, 3, 6)
    for bug in itertools.combinations(SWITCHES, size)
    if settled(frozenset(bug)) == set(bug)
]


@pytest.mark.parametrize("bug", EVERY_BUG, ids=lambda bug: "+".join(sorted(bug)))
def test_every_bug_is_named_whatever_is_suspected_first(bug):
    for seed in range(5):
        order = random.Random(seed).sample(SWITCHES, len(SWITCHES))
        engine = Engine(bug)
        assert search(engine, order) == Found("switches", bug)
        assert len(engine.runs) <= 2 + 4 * len(bug) + 3 * len(SWITCHES)


def test_a_likely_switch_takes_three_runs():
    engine = Engine({"overlap"})
    assert search(engine) == Found("switches", {"overlap"})
    assert engine.runs == [frozenset(), {"overlap"}, frozenset()]


@pytest.mark.parametrize("seed", range(20))
def test_of_several_bugs_one_is_named_and_nothing_in_it_can_be_spared(seed):
    bugs = random.Random(seed).sample(EVERY_BUG, 3)
    engine = Engine(*bugs)
    named = search(engine).switches
    assert named in bugs
    assert not any(bug < named for bug in bugs)


def test_what_differs_without_any_switch_is_in_the_target():
    engine = Engine(())
    assert search(engine) == Found("target", frozenset())
    assert len(engine.runs) == 1


def test_a_run_that_was_clean_by_luck_spares_a_switch_when_it_is_repeated():
    bug = {"overlap"}
    engine = Engine(bug, hides=1)
    lucky = Search(SWITCHES[:1], engine.differs, settled, max_runs=100).find()
    assert lucky == Found("switches", bug)
    assert engine.runs.count(frozenset(bug)) == 2
    named = search(Engine({"draft"}, {"draft", "overlap"}, hides=1)).switches
    assert named == {"draft"}


def test_a_race_in_the_target_shows_in_the_repetition():
    class Lucky(Engine):
        def differs(self, switches):
            return super().differs(switches) or bool(switches)

    assert search(Lucky((), hides=1)) == Found("target", frozenset())


@pytest.mark.parametrize("order", [SWITCHES, ()])
def test_a_difference_that_never_comes_again_is_not_put_down_to_a_switch(order):
    engine = Engine()
    assert search(engine, order) == Found("not-reproduced", None)
    assert engine.runs[-2:] == [frozenset(order)] * 2


def test_a_switch_that_means_nothing_alone_costs_no_run():
    engine = Engine({"cache", "tier"})
    assert search(engine, ("tier", "cache")) == Found("switches", {"cache", "tier"})
    assert frozenset({"tier"}) not in engine.runs


@pytest.mark.parametrize("max_runs", range(1, 12))
def test_it_stops_when_the_runs_are_used_up_and_tells_the_smallest_set_so_far(max_runs):
    bug = frozenset({"draft", "graph"})
    engine = Engine(bug)
    found = search(engine, max_runs=max_runs)
    assert len(engine.runs) <= max_runs
    if found.outcome == "unfinished":
        differing = [switches for switches in engine.runs if bug <= switches]
        assert found.switches == min(differing, key=len, default=None)
    else:
        assert found == Found("switches", bug)
