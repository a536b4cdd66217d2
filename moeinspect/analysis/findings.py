"""The one `Report` that serves every format, and the parts it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

SCHEMA = "moeinspect-report/1"

Severity = Literal["error", "warning", "note"]
Region = Literal["prompt", "output", "both"]
Verdict = Literal["clean", "numerics", "findings"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a rule saw.

    `input` is 0 or 1 for the trace it stands in, None when it is about the pair. `rows` are row indices
    inside the request, first and last exclusive; `layers` are absolute layer indices. `count` is in cells,
    or in rows for the rules on rows' presence.
    """

    rule: str
    severity: Severity
    message: str
    count: int
    input: int | None = None
    request: str | None = None
    rows: tuple[int, int] | None = None
    layers: tuple[int, ...] = ()
    region: Region | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LayerStats:
    """What the comparison saw at one layer; shares are from 0 to 1, None where nothing was compared."""

    layer: int
    compared: int
    set_mismatch: float | None
    order_mismatch: float | None
    overlap_mean: float | None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A likely cause: a name of the fault catalogue, or `numerics`, `tokens-diverged`, `unknown`.

    `explains` counts the flagged cells that it accounts for, each under one cause: none where it is about
    rows that are missing or too many, or about tokens.
    """

    cause: str
    confidence: float
    because: tuple[str, ...]
    reference: str
    next_step: str
    explains: int = 0


@dataclass(frozen=True, slots=True)
class InputSummary:
    """One input as the report names it."""

    path: str
    engine: str
    requests: int
    rows: int
    layers: int
    top_k: int
    num_experts: int
    complete: bool


@dataclass(frozen=True, slots=True)
class Report:
    """What a command found; every output format renders this and nothing else."""

    command: str
    inputs: tuple[InputSummary, ...]
    verdict: Verdict
    counts: Mapping[str, int]
    findings: tuple[Finding, ...]
    layers: tuple[LayerStats, ...] = ()
    diagnoses: tuple[Diagnosis, ...] = ()
    strict: bool = False
    """A numerics verdict counts as a difference (`--strict`, or both traces claim bit-exactness)."""

    @property
    def differs(self) -> bool:
        """Whether something was found: findings, or numerics where they count."""
        return self.verdict == "findings" or (self.verdict == "numerics" and self.strict)
