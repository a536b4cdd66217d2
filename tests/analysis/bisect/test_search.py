"""The search names the sets that differ and of which no switch can be spared, whatever the runs answer."""

import itertools
import random

import pytest

from moeinspect.analysis.bisect.runs import Runs
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


def search(engine, order=SWITCHES, max_runs=100, **options):
    return Search(order, Runs(engine.differs, settled, max_runs=max_runs), bool).find(**options)


def named(*bugs, **found):
    return Found("switches", tuple(map(frozenset, bugs)), **found)


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
        assert search(engine, order) == named(bug)
        assert len(engine.runs) <= 2 + 5 * len(bug) + 3 * len(SWITCHES)


def test_a_likely_switch_takes_three_runs_and_one_without_it():
    engine = Engine({"overlap"})
    assert search(engine) == named({"overlap"})
    assert engine.runs == [frozenset(), {"overlap"}, frozenset(), set(SWITCHES) - {"overlap"}]


@pytest.mark.parametrize("seed", range(40))
def test_all_of_several_bugs_are_named_but_those_that_hold_another(seed):
    bugs = random.Random(seed).sample(EVERY_BUG, 2 + seed % 3)
    found = search(Engine(*bugs), max_runs=1000)
    assert (found.outcome, found.remains) == ("switches", "nothing")
    assert set(found.sets) == {bug for bug in bugs if not any(other < bug for other in bugs)}
    assert len(set(found.sets)) == len(found.sets)


def test_two_bugs_of_a_switch_each_take_few_runs():
    engine = Engine({"draft"}, {"disagg"})
    assert search(engine) == named({"draft"}, {"disagg"})
    assert len(engine.runs) <= 10


def test_only_the_first_set_costs_no_run_for_others():
    engine = Engine({"overlap"}, {"draft"})
    assert search(engine, only_first=True) == named({"overlap"})
    assert len(engine.runs) == 3


def test_runs_are_shared_by_searches_that_look_for_different_things():
    runs = Runs(lambda switches: set(switches), settled, max_runs=100)
    holds_draft = Search(SWITCHES, runs, lambda came: "draft" in came)
    assert holds_draft.find() == named({"draft"})
    made = len(runs.seen)
    again = Search(SWITCHES, runs, lambda came: "draft" in came)
    assert again.find() == named({"draft"}) and len(runs.seen) == made
    assert Search(SWITCHES, runs, lambda came: "disagg" in came).find() == named({"disagg"})


def test_what_differs_without_any_switch_is_in_the_target():
    engine = Engine(())
    assert search(engine) == Found("target", (frozenset(),))
    assert len(engine.runs) == 1


def test_a_run_that_was_clean_by_luck_spares_a_switch_when_it_is_repeated():
    bug = {"overlap"}
    engine = Engine(bug, hides=1)
    assert search(engine, SWITCHES[:1]) == named(bug)
    assert engine.runs.count(frozenset(bug)) == 2
    assert search(Engine({"draft"}, {"draft", "overlap"}, hides=1)).sets == (frozenset({"draft"}),)


def test_a_race_in_the_target_shows_in_the_repetition():
    class Lucky(Engine):
        def differs(self, switches):
            return super().differs(switches) or bool(switches)

    assert search(Lucky((), hides=1)) == Found("target", (frozenset(),))


@pytest.mark.parametrize("order", [SWITCHES, ()])
def test_a_difference_that_never_comes_again_is_not_put_down_to_a_switch(order):
    engine = Engine()
    assert search(engine, order) == Found("not-reproduced")
    assert engine.runs[-2:] == [frozenset(order)] * 2


def test_a_switch_that_means_nothing_alone_costs_no_run():
    engine = Engine({"cache", "tier"})
    assert search(engine, ("tier", "cache")) == named({"cache", "tier"})
    assert frozenset({"tier"}) not in engine.runs


@pytest.mark.parametrize("max_runs", range(1, 18))
def test_it_stops_when_the_runs_are_used_up_and_tells_how_far_it_got(max_runs):
    first, second = frozenset({"draft", "graph"}), frozenset({"disagg", "cache"})
    engine = Engine(first, second)
    found = search(engine, max_runs=max_runs)
    assert len(engine.runs) <= max_runs
    if found.outcome == "unfinished":
        differing = [switches for switches in engine.runs if first <= switches or second <= switches]
        assert found.sets == tuple(sorted(dict.fromkeys(differing), key=len)[:1])
        assert found.remains == "untried"
        return
    assert set(found.sets) <= {first, second} and found.sets
    if len(found.sets) == 2:
        assert found.remains in ("nothing", "untried")
    else:
        other = second if found.sets == (first,) else first
        seen = any(other <= run and not found.sets[0] <= run for run in engine.runs)
        assert found.remains == ("something" if seen else "untried")
