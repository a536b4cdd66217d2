"""The JSON document: its keys are contract."""

import json

import numpy as np
from report.sample import NASTY, an_input, check, clean_diff, diff, finding

from moeinspect.report import render


def document(report):
    text = render(report, "json", color=True, width=40)

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_the_keys_are_those_of_the_schema_in_a_fixed_order():
    got = document(diff())
    assert list(got) == [
        "schema",
        "command",
        "inputs",
        "verdict",
        "counts",
        "findings",
        "layers",
        "diagnoses",
    ]
    assert got["schema"] == "moeinspect-report/1"
    assert list(got["inputs"][0]) == [
        "path", "engine", "requests", "rows", "layers", "top_k", "num_experts", "complete",
    ]  # fmt: skip
    assert list(got["findings"][0]) == [
        "rule", "severity", "input", "request", "rows", "layers", "region", "count", "message", "evidence",
    ]  # fmt: skip
    assert list(got["layers"][0])[:5] == [
        "layer",
        "compared",
        "set_mismatch",
        "order_mismatch",
        "overlap_mean",
    ]
    assert list(got["diagnoses"][0]) == [
        "cause", "confidence", "because", "reference", "next_step", "explains",
    ]  # fmt: skip


def test_values_keep_their_types():
    got = document(diff())
    one = got["findings"][2]
    assert (one["input"], one["request"], one["rows"], one["layers"]) == (0, "r2", [2, 5], [1, 2])
    assert (one["region"], one["count"]) == ("prompt", 6)
    assert got["findings"][0]["input"] is None
    assert got["layers"][0]["order_mismatch"] is None
    assert got["inputs"][0]["complete"] is True
    assert got["diagnoses"][0]["because"] == ["layers 1-2 differ", "a draft ran"]


def test_numpy_values_become_numbers_and_what_is_no_number_becomes_null():
    evidence = document(diff())["findings"][0]["evidence"]
    assert evidence == {"overlap_mean": 0.5, "worst": None, "ids": [0, 1], "at": [1, 2]}
    infinite = finding(evidence={"margin": np.float32(np.inf), "flag": np.bool_(True), "n": np.int64(3)})
    got = document(diff(findings=(infinite,)))["findings"][0]["evidence"]
    assert got == {"margin": None, "flag": True, "n": 3}


def test_a_report_without_findings_has_empty_lists():
    got = document(clean_diff())
    assert (got["verdict"], got["findings"], got["diagnoses"]) == ("clean", [], [])
    assert document(check())["layers"] == []


def test_any_id_and_path_survive_and_no_control_character_is_written_raw():
    report = diff(findings=(finding(request=NASTY),), inputs=(an_input("caf\xe9\udc80.h5"), an_input()))
    text = render(report, "json", color=False, width=None)
    assert text.isascii()
    assert "\x1b" not in text
    assert document(report)["findings"][0]["request"] == NASTY
    assert document(report)["inputs"][0]["path"] == "caf\xe9\udc80.h5"


def test_the_same_report_gives_the_same_text():
    assert render(diff(), "json", color=False, width=None) == render(diff(), "json", color=True, width=80)
