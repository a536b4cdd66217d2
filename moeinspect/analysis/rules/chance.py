"""How likely a healthy trace shows something by chance, as decimal logarithms.

The rules on patterns fire only below `LOG10_LIMIT`. docs/rules.md explains and justifies the models.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

LOG10_LIMIT = -9.0
MIN_REACH = 10
"""Pairs that must reach a level for its slope to mean something."""
FLOOR = -400.0
"""No chance is called smaller than 10**FLOOR; a logarithm of zero is of no use to anybody."""


def log10(value: float) -> float:
    """Decimal logarithm, `FLOOR` at and below zero."""
    return max(FLOOR, math.log10(value)) if value > 0 else FLOOR


def label_log10(num_experts: int, distinct: int) -> float:
    """Chance that a random numbering of E experts gives `distinct` of them the numbers of a pattern.

    Nothing in a router prefers one expert's number, so under any healthy routing, however skewed or
    dependent, the numbers that the chosen experts of one layer bear are a random arrangement.
    """
    return (math.lgamma(num_experts - distinct + 1) - math.lgamma(num_experts + 1)) / math.log(10)


def order_log10(top_k: int, distinct: int) -> float:
    """How many orders of the slots the same sets allow, for rows whose slot order means nothing."""
    full, rest = divmod(distinct, top_k)
    return (full * math.lgamma(top_k + 1) + math.lgamma(rest + 1)) / math.log(10)


def agreement_tail(histogram: NDArray[np.int64]) -> float:
    """Chance that two rows agree in all m slots, from how far unequal rows agree.

    `histogram` [m + 1] counts pairs of rows by the number of (layer, slot) entries in which they agree.
    Equal rows are left out (entry m is 0), since they may be what is judged. The share of pairs that agree
    in j or more entries is carried on to m at the slope it has there, one pair added on either side so
    that few pairs give a flat slope. The largest value of the deep tail (levels that at most one pair in a
    hundred reaches, and the last level at which there is any pair) counts: one nearly equal pair is
    enough to make equal rows likely.
    """
    m = len(histogram) - 1
    reach = np.cumsum(histogram[::-1])[::-1].astype(np.float64)
    total = reach[0]
    if total == 0:
        return 1.0
    seen = np.flatnonzero(histogram)
    levels = [j for j in seen.tolist() if MIN_REACH <= reach[j] <= total / 100 or j == seen[-1]]
    carried = [reach[j] / total * ((reach[j + 1] + 1) / (reach[j] + 1)) ** (m - j) for j in levels]
    return min(1.0, float(max(carried)))


def tail_log10(hits: int, trials: int, share: float) -> float:
    """Bound on the chance that `hits` or more of `trials` independent ones hit, each at a chance of `share`.

    Chernoff's: 0 where so many are expected.
    """
    if not hits or hits <= share * trials:
        return 0.0
    missed = trials - hits
    found = hits * math.log(hits / (trials * share))
    left = missed * math.log(missed / (trials * (1 - share))) if missed else 0.0
    return max(FLOOR, -(found + left) / math.log(10))
