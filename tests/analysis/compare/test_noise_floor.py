"""What two runs of one configuration differ by is numerics; a layer or a span beyond that never is."""

from dataclasses import replace

import numpy as np
import pytest
from analysis.compare.noisyruns import NoisyModel
from analysis.tracefactory import make_facts

from moeinspect.analysis.compare import compare, diff_report
from moeinspect.analysis.compare.floor.largedev import log_binomial_tail, log_excess, log_poisson_tail
from moeinspect.errors import InputError

NOISES = [0.003, 0.02, 0.1]
"""Sizes of noise: some 1, 7 and 31 % of the sets of 48 layers differ between two runs."""


def floored(model, edit=None, **run):
    """The report on a run with `edit`, with two more runs for baseline and floor."""
    return diff_report(model.run("a", edit, **run), model.run("b", **run), model.run("b2", **run))


def above(report, rule="above-floor"):
    return [finding for finding in report.findings if finding.rule == rule]


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("shape", [(48, 6), (5, 13), (12, 1)], ids=str)
def test_runs_that_are_as_noisy_as_each_other_are_numerics(noise, shape):
    for seed in range(4):
        model = NoisyModel(seed, noise=noise, layers=shape[0], requests=shape[1])
        report = floored(model, diverge=0.03)
        assert report.verdict == "numerics", [f.message for f in report.findings if f.severity == "error"]
        assert report.counts["within_floor_cells"] == report.counts["set_mismatch_cells"]
        assert not above(report)


def draft(model):
    return lambda ids: ids.__setitem__((..., 17, slice(None)), model.random_ids(*ids.shape[:2]))


def shifted(model):
    return lambda ids: ids.__setitem__((slice(None), slice(1, None), 17), ids[:, :-1, 17].copy())


def renamed(model):
    return lambda ids: ids.__setitem__((..., 17, slice(None)), (ids[..., 17, :] + 1) % 32)


def one_slot(model):
    return lambda ids: ids.__setitem__((..., 17, 3), (ids[..., 17, 3] + 1 + model.rng.integers(0, 9)) % 32)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("fault", [draft, shifted, renamed])
def test_one_wrong_layer_of_48_stands_out(fault, noise):
    model = NoisyModel(3, noise=noise)
    report = floored(model, fault(model))
    assert report.verdict == "findings"
    assert {f.layers for f in above(report)} == {(17,)}
    worst = above(report)[0]
    assert worst.severity == "error"
    assert worst.evidence["share"] > 0.9 > 0.3 > worst.evidence["floor"]
    assert f"against a floor of {100 * worst.evidence['floor']:.1f} %" in worst.message
    assert {layer for f in report.findings if f.severity == "error" for layer in f.layers} == {17}


def test_one_wrong_expert_in_every_cell_of_a_layer_stands_out():
    model = NoisyModel(4)
    assert {f.layers for f in above(floored(model, one_slot(model)))} == {(17,)}


@pytest.mark.parametrize("noise", NOISES)
def test_one_span_of_one_request_stands_out_and_is_named_exactly(noise):
    model = NoisyModel(5, noise=noise)
    report = floored(model, lambda ids: ids.__setitem__((2, slice(10, 16)), model.random_ids(6, 48)))
    assert report.verdict == "findings"
    assert {(f.request, f.rows) for f in above(report)} == {("r2", (10, 16))}
    assert above(report)[0].region == "prompt"


@pytest.mark.parametrize("noise", NOISES)
def test_a_span_of_one_layer_stands_out(noise):
    model = NoisyModel(6, noise=noise)
    report = floored(model, lambda ids: ids.__setitem__((2, slice(10, 22), 5), model.random_ids(12)))
    assert {(f.request, f.rows, f.layers) for f in above(report)} == {("r2", (10, 22), (5,))}


def test_one_row_stands_out_where_noise_is_moderate():
    model = NoisyModel(7)
    report = floored(model, lambda ids: ids.__setitem__((3, 30), model.random_ids(48)))
    assert {(f.request, f.rows) for f in above(report)} == {("r3", (30, 31))}


def test_a_run_that_is_noisier_all_over_exceeds_the_floor_as_a_whole():
    quiet, loud = NoisyModel(8, noise=0.005), NoisyModel(8, noise=0.05)
    report = diff_report(loud.run("a"), quiet.run("b"), quiet.run("b2"))
    assert report.verdict == "findings"
    assert max(len(f.layers) for f in above(report)) > 5


def test_equal_runs_have_a_floor_of_0_and_excuse_nothing():
    model = NoisyModel(9)
    a, b = model.run("a"), model.run("b")
    report = diff_report(a, b, replace(b, path="b2"))
    assert "the noise floor is 0: B and b2 are equal" in above(report, "noise-floor")[0].message
    assert report.verdict == "findings"
    assert report.counts["within_floor_cells"] == 0
    assert diff_report(b, b, b).verdict == "clean"


def test_near_ties_stay_numerics_whatever_the_floor():
    model = NoisyModel(10, noise=0.003)
    a, b = model.run("a"), model.run("b", margins=True)
    assert diff_report(a, b, replace(b, path="b2")).verdict == "numerics"


def test_a_layer_in_which_the_floor_is_no_noise_excuses_nothing():
    model = NoisyModel(11)
    report = diff_report(model.run("a", draft(model)), model.run("b"), model.run("b2", draft(model)))
    assert report.verdict == "findings"
    assert {f.layers for f in above(report)} == {(17,)}


def test_a_layer_without_a_floor_is_never_within_it():
    model = NoisyModel(12, layers=6)
    b2 = model.run("b2")
    b2 = replace(b2, model=make_facts(6, 32, 4, moe_layers=range(5)))
    b2 = replace(b2, rows=replace(b2.rows, expert_ids=b2.rows.expert_ids[:, :5]))
    comparison = compare(model.run("a"), model.run("b"), b2)
    assert comparison.within("set")[:, 4].any()
    assert not comparison.within("set")[:, 5].any()
    assert np.isnan(comparison.floor.rates[5])


def test_layers_tell_their_floor_and_counts_what_is_within():
    model = NoisyModel(13, layers=6)
    report = floored(model)
    evidence = above(report, "noise-floor")[0].evidence
    assert [one.extra["noise_floor"] for one in report.layers] == [
        layer["set_mismatch"] for layer in evidence["by_layer"]
    ]
    assert [d.cause for d in report.diagnoses] == ["numerics"]
    assert any("within the noise floor that b2 tells" in line for line in report.diagnoses[0].because)
    assert "noise_floor" not in diff_report(model.run("a"), model.run("b")).layers[0].extra


def test_a_run_of_another_model_is_refused():
    model = NoisyModel(14, layers=4)
    a, b = model.run("a"), model.run("b")
    other = replace(b, path="b2", model=replace(b.model, fingerprint="0" * 16))
    with pytest.raises(InputError, match="--noise-floor b2: recorded with another model than b: checkpoint"):
        diff_report(a, b, other)


def test_a_run_that_the_one_trace_rules_find_faulty_is_refused():
    model = NoisyModel(15, layers=4)
    zeros = model.run("b2", lambda ids: ids.__setitem__((0, slice(5, 12)), 0))
    with pytest.raises(InputError, match="a faulty run is no measure of noise: zero-rows"):
        diff_report(model.run("a"), model.run("b"), zeros)


def test_a_run_of_other_requests_is_refused():
    model = NoisyModel(16, layers=4)
    b2 = model.run("b2")
    b2 = replace(
        b2,
        requests=replace(b2.requests, id=np.char.add("other-", b2.requests.id.astype(str))),
        tokens=b2.tokens + 7,
    )
    with pytest.raises(InputError, match="nothing to compare"):
        diff_report(model.run("a"), model.run("b"), b2)


def test_bounds_are_never_below_the_true_tails():
    rng = np.random.default_rng(0)
    binomial, poisson = rng.binomial(40, 0.1, 200_000), rng.poisson(3.0, 200_000)
    for count in range(0, 12):
        assert np.exp(log_binomial_tail(count, 40, 0.1)) >= (binomial >= count).mean() - 1e-3
        assert np.exp(log_poisson_tail(count, 3.0)) >= (poisson >= count).mean() - 1e-3
    assert log_binomial_tail(40, 40, 0.1) == pytest.approx(40 * np.log(0.1))
    assert log_excess(60, 1000, 40, 1000, 1.5) == 0.0
    assert log_excess(400, 1000, 20, 1000, 1.5) < np.log(1e-30)
