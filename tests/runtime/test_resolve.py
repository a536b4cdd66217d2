from dataclasses import replace

import pytest

from moeinspect.errors import UsageError
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.faults import ANY_DRAFT, FAULTS, OWN_DRAFT, OWN_UPDATE, Fault
from moeinspect.runtime.resolve import OWN_PROMPTS, UNCHUNKED, resolve
from moeinspect.runtime.traffic import TRAFFICS

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
        ("prefix_cache", True, "--prefix-cache"),
        ("host_kv_slots", 8, "--host-kv-slots 8"),
        ("graph", True, "--graph"),
        ("draft_topk", 2, "--draft-topk 2"),
        ("adaptive_draft", True, "--adaptive-draft"),
        ("prefill_workers", 2, "--prefill-workers 2"),
        ("decode_workers", 2, "--decode-workers 2"),
        ("transfer", "gloo", "--transfer gloo"),
        ("stream", True, "--stream"),
        ("weight_updates", ((3, "m"), (5, "n")), "--weight-update 3:m --weight-update 5:n"),
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


TURNED_ON = {OWN_DRAFT: DRAFT, ANY_DRAFT: DRAFT, OWN_UPDATE: ((8, "builtin:tiny-updated"),)}
BARE = RunConfig(overlap=False, prefix_cache=False)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_turns_on_what_it_needs_and_says_so(name):
    config, notes = resolve(replace(BARE, faults=(name,)), frozenset({OWN_PROMPTS}))
    needs = FAULTS[name].needs
    for field, value in needs.items():
        assert getattr(config, field) == (TURNED_ON.get(value, value) if isinstance(value, str) else value)
    missing = [field for field, value in needs.items() if getattr(BARE, field) != value]
    assert len(notes) == len(missing)
    assert all(f"--fault {name} turned on" in note for note in notes)


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.traffic])
def test_a_fault_brings_its_traffic_along_and_says_so(name):
    traffic = FAULTS[name].traffic
    config, notes = resolve(RunConfig(faults=(name,)), frozenset())
    assert config.traffic == (traffic,)
    assert f"--fault {name} brings --traffic {traffic}: {TRAFFICS[traffic].summary}" in notes
    for explicit in ({OWN_PROMPTS}, {"traffic"}):
        config, notes = resolve(RunConfig(faults=(name,)), frozenset(explicit))
        assert config.traffic == () and not any("brings" in note for note in notes)


@pytest.mark.parametrize("name", TRAFFICS)
def test_traffic_brings_options_along_unless_the_user_named_them(name):
    config, notes = resolve(RunConfig(traffic=(name,)), frozenset({"traffic"}))
    for field, value in TRAFFICS[name].options.items():
        assert getattr(config, field) == value
        own = resolve(RunConfig(traffic=(name,)), frozenset({"traffic", field}))[0]
        assert getattr(own, field) == getattr(RunConfig(), field)
    assert notes == ()


def test_unknown_traffic_is_refused():
    with pytest.raises(UsageError, match="--traffic jam: no such traffic; known traffics: shared-prefixes"):
        resolve(RunConfig(traffic=("jam",)), frozenset())


ORPHANS = [
    ("host_kv_slots", 8, {"prefix_cache": False}, "--host-kv-slots 8: there is no prefix cache"),
    ("draft_topk", 2, {}, "--draft-topk 2: there is no draft"),
    ("adaptive_draft", True, {}, "--adaptive-draft: there is no draft"),
    ("prefill_workers", 2, {}, "--prefill-workers 2: prefill and decode are in one process"),
    ("decode_workers", 3, {}, "--decode-workers 3: prefill and decode are in one process"),
    ("transfer", "gloo", {}, "--transfer gloo: prefill and decode are in one process"),
    ("weight_updates", ((3, "m"),), {"disagg": True}, "--weight-update 3:m: weights are updated in one"),
]


@pytest.mark.parametrize("field, value, others, message", ORPHANS, ids=lambda value: str(value)[:20])
def test_an_option_that_means_nothing_is_refused_or_left_out(field, value, others, message):
    config = RunConfig(**{field: value}, **others)
    with pytest.raises(UsageError, match=message):
        resolve(config, frozenset({field}))
    settled, notes = resolve(config, frozenset())
    assert getattr(settled, field) == getattr(RunConfig(), field)
    assert notes == (f"warning: {notes[0].removeprefix('warning: ')}",)


@pytest.mark.parametrize("steps", [(3, 3), (5, 2)])
def test_weight_updates_have_to_ascend(steps):
    updates = tuple((step, "m") for step in steps)
    with pytest.raises(UsageError, match="the steps do not ascend"):
        resolve(RunConfig(weight_updates=updates), frozenset({"weight_updates"}))


def test_padding_is_always_masked_where_a_worker_has_several_ranks():
    _, notes = resolve(RunConfig(faults=("padded-rows",), graph=True, tp_size=2), frozenset({OWN_PROMPTS}))
    assert notes == (
        "warning: --fault padded-rows does nothing in this run: it needs workers of one rank each",
    )
    assert resolve(RunConfig(faults=("padded-rows",), graph=True), frozenset({OWN_PROMPTS}))[1] == ()


def test_an_ngram_draft_is_no_moe_draft():
    needs = FAULTS["draft-capture"].needs
    assert needs == {"draft": OWN_DRAFT}
    config, notes = resolve(RunConfig(draft="ngram", faults=("draft-capture",)), frozenset({"draft"}))
    assert config.draft == "ngram"
    assert notes[0].startswith("warning: --fault draft-capture does nothing in this run: it needs --draft")


@pytest.mark.parametrize("name", FAULTS)
def test_a_need_that_was_switched_off_explicitly_stays_off_with_a_warning(name):
    for field, value in FAULTS[name].needs.items():
        off = False if value is True else "torch" if field == "backend" else getattr(RunConfig(), field)
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


def test_a_fault_that_loses_what_it_needs_says_that_it_does_nothing():
    _, notes = resolve(RunConfig(faults=("retract-reroute",), disagg=True), frozenset({"disagg"}))
    assert any("warning" in note and "--fault retract-reroute does nothing" in note for note in notes)


SHARED = "builtin:random-shared"


@pytest.fixture
def _model_faults(monkeypatch):
    needs = {"model": SHARED, "fused_shared_expert": True}
    monkeypatch.setitem(FAULTS, "shared", Fault("shared", "", "", needs))
    monkeypatch.setitem(FAULTS, "hash", Fault("hash", "", "", {"model": "builtin:random-hash"}))


@pytest.mark.usefixtures("_model_faults")
def test_a_fault_runs_the_model_that_it_needs_with_that_models_own_draft():
    config, notes = resolve(RunConfig(faults=("draft-capture", "shared")), frozenset())
    assert (config.model, config.draft) == (SHARED, f"{SHARED}-draft")
    assert notes[0] == f"--fault shared turned on {SHARED}"


@pytest.mark.usefixtures("_model_faults")
@pytest.mark.parametrize("model", [SHARED, f"{SHARED}-updated"])
def test_a_model_that_has_what_a_fault_needs_is_kept(model):
    config, notes = resolve(RunConfig(model=model, faults=("shared",)), frozenset({"model"}))
    assert config.model == model
    assert notes == ("--fault shared turned on --fused-shared-expert",)


@pytest.mark.usefixtures("_model_faults")
def test_with_another_model_named_the_fault_is_inert_and_nothing_else_is_turned_on():
    config, notes = resolve(RunConfig(faults=("shared",)), frozenset({"model"}))
    assert config == RunConfig(faults=("shared",))
    assert notes == (
        f"warning: --fault shared does nothing in this run: it needs {SHARED}, and builtin:tiny was given",
    )


@pytest.mark.usefixtures("_model_faults")
def test_faults_that_need_different_models_contradict_each_other():
    with pytest.raises(UsageError, match=f"--fault shared runs {SHARED} and --fault hash needs"):
        resolve(RunConfig(faults=("shared", "hash")), frozenset())


@pytest.mark.parametrize(
    ("fault", "given"),
    [
        ("padded-rows", {"tp_size": 2}),
        ("dp-slice", {"dp_size": 1}),
        ("dp-slice", {"draft": None}),
        ("stale-slot", {"prefix_cache": False}),
    ],
)
def test_nothing_is_turned_on_for_a_fault_that_can_do_nothing(fault, given):
    asked = RunConfig(faults=(fault,), **given)
    config, notes = resolve(asked, frozenset(given))
    assert config == asked
    assert len(notes) == 1 and notes[0].startswith(f"warning: --fault {fault} does nothing in this run: ")
