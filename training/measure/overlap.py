"""Whether the draft's choice of experts has anything to do with the target's, even under renaming."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def overlaps(
    target: torch.Tensor, draft: torch.Tensor, layers: Sequence[int], top_k: int
) -> list[dict[str, Any]]:
    """For each common layer the mean number of experts chosen by both, from masks [layers, N, E].

    `expected` is what the two models' own frequencies give by chance. `renamed` is the number after the best
    renaming of the draft's experts, found on the first half of the tokens and counted on the second.
    """
    figures = []
    for layer, a, b in zip(layers, target.float(), draft.float(), strict=True):
        half = a.shape[0] // 2
        together = (a[:half].T @ b[:half]).numpy()
        renaming = best_assignment(together)
        figures.append(
            {
                "layer": layer,
                "overlap": round(float((a * b).sum(dim=1).mean()), 3),
                "chance": round(top_k * top_k / a.shape[1], 3),
                "expected": round(float((a.mean(dim=0) * b.mean(dim=0)).sum()), 3),
                "renamed": round(float((a[half:] * b[half:][:, renaming]).sum(dim=1).mean()), 3),
            }
        )
    return figures


def best_assignment(gain: NDArray[np.float64]) -> list[int]:
    """Column for each row of a square table so that the sum of the picked cells is largest.

    The Hungarian method with potentials, O(n^3) (Kuhn 1955; the shortest-path form of Jonker and Volgenant).
    """
    n = gain.shape[0]
    cost = np.pad(gain.max() - gain, ((1, 0), (1, 0)))
    row_price, column_price = np.zeros(n + 1), np.zeros(n + 1)
    row_of = np.zeros(n + 1, dtype=np.int64)
    for row in range(1, n + 1):
        _augment(row, cost, row_price, column_price, row_of)
    columns = [0] * n
    for column in range(1, n + 1):
        columns[row_of[column] - 1] = column - 1
    return columns


def _augment(
    row: int,
    cost: NDArray[np.float64],
    row_price: NDArray[np.float64],
    column_price: NDArray[np.float64],
    row_of: NDArray[np.int64],
) -> None:
    """Finds a place for `row`, moving rows placed before along the cheapest path."""
    n = len(row_of) - 1
    row_of[0] = row
    slack = np.full(n + 1, np.inf)
    way = np.zeros(n + 1, dtype=np.int64)
    done = np.zeros(n + 1, dtype=bool)
    column = 0
    while row_of[column]:
        done[column] = True
        here = row_of[column]
        reduced = cost[here] - row_price[here] - column_price
        better = ~done & (reduced < slack)
        slack[better], way[better] = reduced[better], column
        following = int(np.where(done, np.inf, slack).argmin())
        step = slack[following]
        row_price[row_of[done]] += step
        column_price[done] -= step
        slack[~done] -= step
        column = following
    while column:
        row_of[column] = row_of[way[column]]
        column = way[column]
