"""Reports made by hand for the tests of the formats."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from moeinspect.analysis.findings import Diagnosis, Finding, InputSummary, LayerStats, Report

NASTY = "evil\x1b[31m\r\n::error::x%, [bold]"


def an_input(path: str = "run.h5", **changes: Any) -> InputSummary:
    return replace(InputSummary(path, "local", 3, 120, 4, 4, 16, True), **changes)


def finding(number: int = 0, rule: str = "set-mismatch", **changes: Any) -> Finding:
    made = Finding(
        rule=rule,
        severity="error",
        message=f"rows {number}-{number + 2} (prompt), layers 1-2: another expert set",
        count=6,
        request=f"r{number}",
        rows=(number, number + 3),
        layers=(1, 2),
        region="prompt",
        evidence={"overlap_mean": np.float32(0.5), "worst": math.nan, "ids": np.arange(2), "at": (1, 2)},
    )
    return replace(made, **changes)


def layers(number: int = 4, **extra: Any) -> tuple[LayerStats, ...]:
    more = {"chance_overlap": 0.25, "weight_mismatch": None, "regions": {}} | extra
    return tuple(
        LayerStats(layer, 120, 0.25 if layer == 1 else 0.0, None, 0.9, more) for layer in range(number)
    )


def diff(**changes: Any) -> Report:
    made = Report(
        command="diff",
        inputs=(an_input("a.h5"), an_input("b.h5")),
        verdict="findings",
        counts={
            "rows_compared": 120,
            "cells_compared": 480,
            "set_mismatch_cells": 30,
            "near_ties": 0,
            "rows_checked": 240,
        },
        findings=(finding(0), finding(1), finding(2, "zero-rows", input=0)),
        layers=layers(),
        diagnoses=(
            Diagnosis(
                "draft-capture", 0.95, ("layers 1-2 differ", "a draft ran"), "sglang#26980", "moeinspect x"
            ),
        ),
    )
    return replace(made, **changes)


def clean_diff() -> Report:
    counts = {"rows_compared": 312, "cells_compared": 1872, "set_mismatch_cells": 0, "near_ties": 0}
    return diff(verdict="clean", findings=(), diagnoses=(), counts=counts)


def check(**changes: Any) -> Report:
    made = Report(
        command="check-duplicates",
        inputs=(an_input(),),
        verdict="findings",
        counts={"rows_checked": 120, "cells_checked": 480, "cells_flagged": 6},
        findings=(finding(0, "zero-rows", input=0),),
    )
    return replace(made, **changes)
