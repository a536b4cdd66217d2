"""The report as one JSON document; other people's scripts rely on its keys."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from moeinspect.analysis.findings import SCHEMA, Diagnosis, Finding, InputSummary, LayerStats, Report


def render_json(report: Report) -> str:
    """One document, keys in a fixed order. Numbers that JSON cannot hold (NaN, infinity) become null."""
    return json.dumps(report_document(report), indent=2, allow_nan=False) + "\n"


def report_document(report: Report) -> dict[str, Any]:
    """The report as plain lists, dictionaries, strings and numbers."""
    document = {
        "schema": SCHEMA,
        "command": report.command,
        "inputs": [_input(one) for one in report.inputs],
        "verdict": report.verdict,
        "counts": report.counts,
        "findings": [_finding(one) for one in report.findings],
        "layers": [_layer(one) for one in report.layers],
        "diagnoses": [diagnosis_document(one) for one in report.diagnoses],
    }
    return {key: _plain(value) for key, value in document.items()}


def _input(one: InputSummary) -> dict[str, Any]:
    return {
        "path": one.path,
        "engine": one.engine,
        "requests": one.requests,
        "rows": one.rows,
        "layers": one.layers,
        "top_k": one.top_k,
        "num_experts": one.num_experts,
        "complete": one.complete,
    }


def _finding(one: Finding) -> dict[str, Any]:
    return {
        "rule": one.rule,
        "severity": one.severity,
        "input": one.input,
        "request": one.request,
        "rows": one.rows,
        "layers": one.layers,
        "region": one.region,
        "count": one.count,
        "message": one.message,
        "evidence": one.evidence,
    }


def _layer(one: LayerStats) -> dict[str, Any]:
    return {
        "layer": one.layer,
        "compared": one.compared,
        "set_mismatch": one.set_mismatch,
        "order_mismatch": one.order_mismatch,
        "overlap_mean": one.overlap_mean,
        **one.extra,
    }


def diagnosis_document(one: Diagnosis) -> dict[str, Any]:
    """A diagnosis as it stands in every document."""
    return {
        "cause": one.cause,
        "confidence": one.confidence,
        "because": one.because,
        "reference": one.reference,
        "next_step": one.next_step,
        "explains": one.explains,
    }


def _plain(value: Any) -> Any:  # noqa: ANN401  # any JSON value
    """`value` without numpy types, tuples or numbers that are not JSON."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):  # a numpy scalar or array
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
