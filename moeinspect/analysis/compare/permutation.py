"""Looks for layers in which A's ids are B's under one renaming of the experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.align import Alignment
from moeinspect.analysis.cells import gather, sets_equal
from moeinspect.analysis.compare.cellwise import CellResults

_MAX_ROWS = 32768
_MIN_MISMATCHES = 16
_MAPPED_AGREES = 0.95
"""Share of held-out cells, and of held-out mismatches, that the renaming has to put right."""


@dataclass(frozen=True, slots=True)
class LayerPermutation:
    """One layer's renaming: A's id `source[i]` stands where B has `target[i]`; only ids that moved."""

    place: int
    """Place of the layer among the common layers."""
    source: tuple[int, ...]
    target: tuple[int, ...]
    agreement: float
    """Share of held-out cells with equal sets once the ids are renamed."""
    unmapped: float
    """The same share without renaming."""


def find_permutations(alignment: Alignment, cells: CellResults) -> list[LayerPermutation]:
    """Layers whose mismatches one bijection of the experts, other than the identity, explains.

    The bijection is read off every other row and has to hold on the rows between.
    """
    if alignment.a.rows.expert_ids.shape[2] != alignment.b.rows.expert_ids.shape[2]:
        return []
    num_experts = max(alignment.a.model.num_experts, alignment.b.model.num_experts)
    found = []
    for place in np.flatnonzero(cells.set_mismatch.sum(axis=0) >= _MIN_MISMATCHES):
        layer = slice(int(place), int(place) + 1)
        rows = np.arange(0, len(alignment), -(-len(alignment) // _MAX_ROWS))
        ids_a, ids_b = (
            gather(trace.rows.expert_ids, rows_of[rows], axis[layer])[:, 0].astype(np.int64)
            for trace, rows_of, axis in (
                (alignment.a, alignment.a_row, alignment.a_axis),
                (alignment.b, alignment.b_row, alignment.b_axis),
            )
        )
        known = ((ids_a < num_experts) & (ids_b < num_experts)).all(axis=1) & cells.compared[rows, place]
        permutation = _find_one(int(place), ids_a[known], ids_b[known], num_experts)
        if permutation is not None:
            found.append(permutation)
    return found


def _find_one(place: int, ids_a: NDArray[Any], ids_b: NDArray[Any], num_ids: int) -> LayerPermutation | None:
    mapping = _bijection(_cooccurrence(ids_a[::2], ids_b[::2], num_ids))
    held_a, held_b = ids_a[1::2], ids_b[1::2]
    before = sets_equal(held_a, held_b)
    after = sets_equal(mapping[held_a], held_b)
    moved = np.flatnonzero(mapping != np.arange(num_ids))
    if len(before) - before.sum() < _MIN_MISMATCHES // 2 or not len(moved):
        return None
    if after.mean() < _MAPPED_AGREES or after[~before].mean() < _MAPPED_AGREES:
        return None
    return LayerPermutation(
        place=place,
        source=tuple(int(i) for i in moved),
        target=tuple(int(i) for i in mapping[moved]),
        agreement=float(after.mean()),
        unmapped=float(before.mean()),
    )


def _cooccurrence(ids_a: NDArray[Any], ids_b: NDArray[Any], num_ids: int) -> NDArray[np.float64]:
    """Cosine of how often id i of A stands beside id j of B in one cell [ids, ids]."""
    pairs = ids_a[:, :, None] * num_ids + ids_b[:, None, :]
    together = np.bincount(pairs.reshape(-1), minlength=num_ids * num_ids).reshape(num_ids, num_ids)
    uses_a = np.bincount(ids_a.reshape(-1), minlength=num_ids)
    uses_b = np.bincount(ids_b.reshape(-1), minlength=num_ids)
    norm = np.sqrt(np.outer(uses_a, uses_b).astype(np.float64))
    return np.divide(together, norm, out=np.zeros(norm.shape), where=norm > 0)


def _bijection(score: NDArray[np.float64]) -> NDArray[np.int64]:
    """Pairs ids greedily by score; what is left over keeps its id where it can."""
    num_ids = len(score)
    mapping = np.full(num_ids, -1, dtype=np.int64)
    taken = np.zeros(num_ids, dtype=bool)
    for pair in np.argsort(-score, axis=None, kind="stable"):
        source, target = divmod(int(pair), num_ids)
        if score[source, target] <= 0.5:
            break
        if mapping[source] < 0 and not taken[target]:
            mapping[source] = target
            taken[target] = True
    for left in np.flatnonzero(mapping < 0):
        if not taken[left]:
            mapping[left], taken[left] = left, True
    mapping[mapping < 0] = np.flatnonzero(~taken)
    return mapping
