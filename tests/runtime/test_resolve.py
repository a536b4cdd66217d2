import pytest

from moeinspect.errors import UsageError
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.faults import FAULTS
from moeinspect.runtime.resolve import UNCHUNKED, resolve

DRAFT = "builtin:tiny-draft"


def test_a_plain_configuration_is_left_alone():
    assert resolve(RunConfig(), frozenset()) == (RunConfig(), ())


def test_target_only_turns_everything_off():
    config, notes = resolve(RunConfig(target_only=True), frozenset())
    assert (config.overlap, config.disagg, config.draft) == (False, False, None)
    assert (config.max_running_requests, config.chunked_prefill_size, config.backend) == (
        1,
        UNCHUNKED,
        "torch",
    )
    assert notes == ()


@pytest.mark.parametrize(
    "field, value, flag",
    [
        ("overlap", True, "--overlap"),
        ("disagg", True, "--disagg"),
        ("draft", "builtin:tiny-draft", "--draft builtin:tiny-draft"),
        ("max_running_requests", 4, "--max-running-requests 4"),
        ("backend", "triton", "--backend triton"),
        ("chunked_prefill_size", 8, "--chunked-prefill-size 8"),
    ],
)
def test_a_contrary_switch_beside_target_only_is_refused_by_name(field, value, flag):
    config = RunConfig(target_only=True, **{field: value})
    with pytest.raises(UsageError, match=flag):
        resolve(config, frozenset({field}))


def test_target_only_beside_a_switch_that_agrees_is_fine():
    config = RunConfig(target_only=True, overlap=False, max_running_requests=1)
    resolve(config, frozenset({"overlap", "max_running_requests"}))


def test_target_only_and_a_fault_contradict_each_other():
    with pytest.raises(UsageError, match="--fault"):
        resolve(RunConfig(target_only=True, faults=("no-merge",)), frozenset({"faults"}))


def test_an_unknown_fault_is_refused():
    with pytest.raises(UsageError, match="nonsense: no such fault"):
        resolve(RunConfig(faults=("nonsense",)), frozenset())


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_turns_on_what_it_needs_and_says_so(name):
    bare = RunConfig(overlap=False, faults=(name,))
    config, notes = resolve(bare, frozenset())
    for field, value in FAULTS[name].needs.items():
        assert getattr(config, field) == (DRAFT if field == "draft" else value)
    assert len(notes) == len(FAULTS[name].needs)
    assert all(f"--fault {name} turned on" in note for note in notes)


@pytest.mark.parametrize("name", FAULTS)
def test_a_need_that_was_switched_off_explicitly_stays_off_with_a_warning(name):
    for field in FAULTS[name].needs:
        off = None if field == "draft" else False
        config, notes = resolve(RunConfig(faults=(name,), **{field: off}), frozenset({field}))
        assert getattr(config, field) == off
        assert any("warning" in note and "does nothing" in note for note in notes)


def test_a_draft_of_the_users_own_is_kept():
    config, notes = resolve(RunConfig(draft="/my/draft", faults=("draft-capture",)), frozenset({"draft"}))
    assert config.draft == "/my/draft" and notes == ()


def test_a_fault_that_needs_a_draft_takes_the_one_made_for_the_target():
    config, _ = resolve(RunConfig(model="builtin:random", faults=("draft-capture",)), frozenset())
    assert config.draft == "builtin:random-draft"


def test_a_target_without_an_embedded_draft_has_to_be_given_one():
    with pytest.raises(
        UsageError, match="needs a MoE draft made for /my/model; name its folder with --draft"
    ):
        resolve(RunConfig(model="/my/model", faults=("draft-capture",)), frozenset())
