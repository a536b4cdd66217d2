"""Who the processes of a run are, and whom each talks to."""

import pytest

from moeinspect.errors import UsageError
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.parallel.layout import RankLayout
from moeinspect.runtime.parallel.roster import Roster, num_processes
from moeinspect.runtime.resolve import resolve

DISAGG = RunConfig(disagg=True, prefill_workers=2, decode_workers=1, dp_size=2, tp_size=2, pp_size=2)


def test_a_run_without_ranks_is_one_process():
    assert Roster(RunConfig()).names == ("unified",)
    assert Roster(RunConfig()).is_one_process


def test_ranks_are_named_by_what_there_are_several_of():
    assert Roster(RunConfig(dp_size=2)).names == ("dp-0", "dp-1")
    assert Roster(RunConfig(tp_size=2, pp_size=2)).names[1:3] == ("pp-0/tp-1", "pp-1/tp-0")
    assert Roster(RunConfig(disagg=True, tp_size=2)).names[-1] == "decode-0/tp-1"


def test_numbers_and_places_of_ranks_are_each_others_inverse():
    layout = RankLayout(dp=2, tp=3, pp=2)
    assert [layout.rank(place) for place in layout.places()] == list(range(12))


def test_every_process_leads_or_follows_exactly_one_leader():
    roster = Roster(DISAGG)
    leaders = (*roster.entry, *roster.decode)
    assert len(roster.seats) == num_processes(DISAGG) == 24
    assert sorted(leaders + tuple(f for leader in leaders for f in roster.team(leader))) == list(range(24))
    for seat in roster.seats:
        leader = roster.leader_of(seat.index)
        assert seat.index == leader or seat.index in roster.team(leader)
        assert roster.seats[leader].place.dp == seat.place.dp


def test_a_counterpart_holds_the_same_share_in_the_other_team():
    roster = Roster(DISAGG)
    for leader in roster.decode:
        for index in roster.ranks_of_worker(0):
            other = roster.seats[roster.counterpart(index, leader)]
            own = roster.seats[index]
            assert (other.place.pp, other.place.tp) == (own.place.pp, own.place.tp)
            assert roster.leader_of(other.index) == leader


def test_links_join_both_sides_leaders_and_each_team():
    roster = Roster(DISAGG)
    links = roster.links()
    assert len(links) == len(set(links)) == 4 * 2 + 6 * 3
    assert all(roster.seats[one].place.is_leader for one, _ in links)


def test_more_processes_than_a_machine_should_be_asked_for_are_refused_at_once():
    config = RunConfig(dp_size=64, tp_size=64, pp_size=64)
    with pytest.raises(UsageError, match=r"--dp-size 64 --tp-size 64 --pp-size 64 would be 262144 processes"):
        resolve(config, frozenset())
