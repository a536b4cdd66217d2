"""Outputs part by rounding now and then, late and never in the prompt: then it is no finding."""

from dataclasses import replace

import pytest
from analysis.compare.logitpairs import logit_pair
from analysis.compare.noisyruns import NoisyModel

from moeinspect.analysis.compare import diff_report


def parted(trace, requests, position):
    """The trace with other tokens from `position` on in some requests."""
    tokens = trace.tokens.copy()
    for request in requests:
        start = int(trace.requests.token_start[request])
        tokens[start + position : start + len(trace.tokens_of(request))] += 1
    return replace(trace, tokens=tokens)


def severities(report):
    return [f.severity for f in report.findings if f.rule == "token-mismatch"]


def test_an_output_that_parts_in_bf16_is_numerics():
    a, b = logit_pair(dtype="bfloat16")
    report = diff_report(parted(a, [1], 30), b)
    assert (report.verdict, severities(report)) == ("numerics", ["note"])
    assert [d.cause for d in report.diagnoses] == ["numerics"]
    assert "the outputs of 1 request part, as rounding makes likely" in report.diagnoses[0].because


@pytest.mark.parametrize("position", [3, 19])
def test_other_prompts_are_a_finding(position):
    a, b = logit_pair(dtype="bfloat16")
    assert severities(diff_report(parted(a, [1], position), b)) == ["error"]


def test_outputs_that_all_part_at_their_first_token_are_a_finding():
    a, b = logit_pair(dtype="bfloat16", requests=8)
    report = diff_report(parted(a, range(8), 20), b)
    assert (report.verdict, severities(report)) == ("findings", ["error"] * 8)


def test_in_fp32_an_output_parts_after_a_flip_only():
    a, b = logit_pair()
    assert diff_report(parted(a, [1], 30), b).verdict == "findings"
    a, b = logit_pair(noise=1e-5, cascade=0.03, requests=40, slot_order="unknown")
    flipped = sorted({f.request for f in diff_report(a, b).findings if f.rule == "set-mismatch"})
    numbers = [int(name[1:]) for name in flipped]
    assert diff_report(parted(a, numbers, 40), b).verdict == "numerics"


def test_runs_that_claim_bit_exactness_part_at_no_token():
    a, b = logit_pair(dtype="bfloat16", machine_keys=("same", "same"))
    assert severities(diff_report(parted(a, [1], 30), b)) == ["error"]


def test_without_margins_or_a_floor_nothing_is_put_down_to_rounding():
    a, b = logit_pair(dtype="bfloat16", margins=False)
    assert severities(diff_report(parted(a, [1], 30), b)) == ["error"]


def test_a_fault_before_the_parting_is_not_excused_by_it():
    def wrong(ids):
        ids[2:9, 3] = (ids[2:9, 3] + 1) % 32

    a, b = logit_pair(dtype="bfloat16", edit=wrong)
    report = diff_report(parted(a, [1], 30), b)
    assert (report.verdict, severities(report)) == ("findings", ["error"])


def test_the_floor_tells_how_often_outputs_part():
    model = NoisyModel(1, layers=6, requests=10)
    b, b2 = model.run("b", diverge=0.02), model.run("b2", diverge=0.02)
    assert diff_report(model.run("a", diverge=0.02), b, b2).verdict == "numerics"
    early = diff_report(parted(model.run("a"), range(10), 20), model.run("b"), model.run("b2"))
    assert severities(early) == ["error"] * 10


@pytest.mark.parametrize("noise", [0.003, 0.01])
@pytest.mark.parametrize("layers", [5, 48])
def test_noise_of_bf16_with_margins_in_the_baseline_is_numerics(noise, layers):
    for seed in range(4):
        model = NoisyModel(seed, noise=noise, layers=layers)
        report = diff_report(model.run("a", diverge=0.02), model.run("b", margins=True))
        assert report.verdict == "numerics", [f.message for f in report.findings if f.severity != "note"]


@pytest.mark.parametrize("noise", [0.003, 0.01])
def test_near_ties_all_over_hide_no_wrong_layer_and_no_wrong_span(noise):
    def layer(ids):
        ids[:, :, 17] = model.random_ids(*ids.shape[:2])

    def shifted(ids):
        ids[:, 1:, 17] = ids[:, :-1, 17].copy()

    def renamed(ids):
        ids[:, :, 17] = (ids[:, :, 17] + 1) % 32

    def span(ids):
        ids[2, 10:16] = model.random_ids(6, 48)

    for edit in (layer, shifted, renamed, span):
        model = NoisyModel(5, noise=noise)
        report = diff_report(model.run("a", edit, diverge=0.02), model.run("b", margins=True))
        assert report.verdict == "findings"
        errors = [f for f in report.findings if f.severity == "error" and f.rule == "set-mismatch"]
        wrong = sum(f.count for f in errors)
        assert wrong >= (0.95 * 6 * 40 * 0.7 if edit is not span else 0.95 * 6 * 48)
        if edit is span:
            assert {f.request for f in errors} == {"r2"}
        else:
            assert all(17 in f.layers for f in errors)
