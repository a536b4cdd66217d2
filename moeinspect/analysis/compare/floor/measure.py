"""Measures the noise floor from two runs of one configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.align import NEVER, Alignment, align
from moeinspect.analysis.compare.cellwise import CellResults, compare_cells
from moeinspect.analysis.compare.floor.kinds import (
    WINDOWS,
    Kind,
    Name,
    by_request,
    dispersion,
    kinds_of,
    window_counts,
)
from moeinspect.analysis.compare.tolerance import Tolerance
from moeinspect.analysis.rules import check_trace
from moeinspect.errors import InputError
from moeinspect.trace.schema import Trace


@dataclass(frozen=True, slots=True)
class KindFloor:
    """One kind of mismatch between the two runs; arrays over the floor's layers [L]."""

    count: NDArray[np.int64]
    by_request: float
    """Dispersion of counts per request and layer."""
    by_request_all: float
    """Dispersion of counts per request over all layers together."""
    by_row_all: float
    """Dispersion of counts per row over all layers together."""
    by_window: Mapping[int, float]
    """Dispersion of counts per span of one layer, by its length in rows."""
    most_of_layer: Mapping[int, int]
    """Most mismatches of one layer in a span of each length."""
    most_of_rows: Mapping[int, int]
    """Most mismatches over all layers in a span of each length."""


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """How much B and B2 differ."""

    path: str
    layers: NDArray[np.int64]
    """Absolute MoE layers [L]."""
    compared: NDArray[np.int64]
    """Cells compared per layer [L]."""
    kinds: Mapping[Name, KindFloor]
    diverged: int
    """Requests whose output tokens differ at some point."""
    output_tokens: int
    """Output tokens up to these points, those at them included."""

    @property
    def is_zero(self) -> bool:
        """B and B2 are equal as far as they were compared."""
        return not self.diverged and not any(kind.count.any() for kind in self.kinds.values())


def measure_floor(b: Trace, b2: Trace, tolerance: Tolerance) -> NoiseFloor:
    """Compares `b` with `b2`, a second run of the same configuration; weights differ as `tolerance` says.

    Raises:
        InputError: they are of two models or have nothing in common, or `b2` fails the one-trace rules: a
            faulty run is no measure of noise.
    """
    _refuse_other_model(b, b2)
    _refuse_faulty(b2)
    alignment = align(b, b2)
    cells = compare_cells(alignment, tolerance)
    diverged, output_tokens = divergences(alignment)
    return NoiseFloor(
        path=b2.path,
        layers=alignment.layers,
        compared=cells.compared.sum(axis=0),
        kinds={kind.name: _floor_of(alignment, cells, kind) for kind in kinds_of(alignment, cells)},
        diverged=diverged,
        output_tokens=output_tokens,
    )


def divergences(alignment: Alignment) -> tuple[int, int]:
    """Requests whose outputs part, and output tokens up to there; prompts that differ are left out."""
    diverged = tokens = 0
    for (request_a, request_b), rows in zip(alignment.pairing.pairs, alignment.pair_rows, strict=True):
        prompt_len = int(alignment.a.requests.prompt_len[request_a])
        length = min(len(alignment.a.tokens_of(request_a)), len(alignment.b.tokens_of(request_b)))
        if rows.first_difference == NEVER:
            tokens += max(0, length - prompt_len)
        elif rows.first_difference >= prompt_len:
            diverged += 1
            tokens += rows.first_difference - prompt_len + 1
    return diverged, tokens


def _floor_of(alignment: Alignment, cells: CellResults, kind: Kind) -> KindFloor:
    counts, sizes = by_request(alignment, kind.mismatch), by_request(alignment, cells.compared)
    per_row = kind.mismatch.sum(axis=1, dtype=np.int64)
    size_of_row = cells.compared.sum(axis=1, dtype=np.int64)
    lengths = [length for length in WINDOWS if length <= len(per_row)]
    windows = {length: window_counts(alignment, kind.mismatch, length) for length in lengths}
    return KindFloor(
        count=kind.mismatch.sum(axis=0),
        by_request=dispersion(counts, sizes),
        by_request_all=dispersion(counts.sum(axis=1)[:, None], sizes.sum(axis=1)[:, None]),
        by_row_all=dispersion(per_row[:, None], size_of_row[:, None]),
        by_window={length: _window_dispersion(values, length) for length, values in windows.items()},
        most_of_layer={length: int(values.max()) for length, values in windows.items()},
        most_of_rows={n: int(window_counts(alignment, per_row, n).max()) for n in lengths},
    )


def _window_dispersion(counts: NDArray[np.int64], length: int) -> float:
    """Dispersion of the counts of spans [n, L]; overlapping ones are alike, which changes no mean."""
    inside = counts[(counts >= 0).all(axis=1)]
    return dispersion(inside, np.full_like(inside, length))


def _refuse_other_model(b: Trace, b2: Trace) -> None:
    facts = (
        ("number of experts", b.model.num_experts, b2.model.num_experts),
        ("top-k", b.model.top_k, b2.model.top_k),
        ("id space", b.run.id_space, b2.run.id_space),
        ("checkpoint", b.model.fingerprint, b2.model.fingerprint),
    )
    for name, ours, theirs in facts:
        if ours != theirs and "" not in (ours, theirs):
            raise InputError(
                f"--noise-floor {b2.path}: recorded with another model than {b.path}: "
                f"{name} {theirs}, not {ours}",
                "give a second run of the configuration that made the baseline",
            )


def _refuse_faulty(b2: Trace) -> None:
    wrong = [finding for finding in check_trace(b2, 0).findings if finding.severity != "note"]
    if wrong:
        raise InputError(
            f"--noise-floor {b2.path}: a faulty run is no measure of noise: "
            f"{wrong[0].rule}, {wrong[0].message}",
            f"look at it with `moeinspect check-duplicates {b2.path}`, or give another run",
        )
