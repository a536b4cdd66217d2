"""Bounds on the probability that counts are as large as they are, by large deviations (Chernoff).

All arrays broadcast; results are natural logarithms, at most 0. A bound never calls a count less likely
than it is, so what it calls unlikely surely is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def log_binomial_tail(successes: ArrayLike, trials: ArrayLike, rate: ArrayLike) -> NDArray[np.float64]:
    """Bound on log P(X >= successes) for X ~ Binomial(trials, rate); counts need not be whole."""
    k, n, p = (np.asarray(x, dtype=np.float64) for x in (successes, trials, rate))
    share = np.divide(k, n, out=np.zeros(np.broadcast(k, n).shape), where=n > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        divergence = _x_log_ratio(share, p) + _x_log_ratio(1 - share, 1 - p)
        return np.asarray(np.where(share > p, -n * divergence, 0.0))


def log_poisson_tail(count: ArrayLike, mean: ArrayLike) -> NDArray[np.float64]:
    """Bound on log P(X >= count) for X ~ Poisson(mean); counts need not be whole."""
    k, m = (np.asarray(x, dtype=np.float64) for x in (count, mean))
    with np.errstate(divide="ignore", invalid="ignore"):
        bound = k - m - _x_log_ratio(k, m)
    return np.asarray(np.where(k > m, bound, 0.0))


def log_excess(
    count: ArrayLike, size: ArrayLike, floor_count: ArrayLike, floor_size: ArrayLike, slack: float
) -> NDArray[np.float64]:
    """Bound on the log probability of `count` in `size` where `floor_count` stood in `floor_size`.

    Under a rate of up to `slack` times the floor's: of all that was counted in both, the first has at most
    its share of the (weighted) size. The floor's own uncertainty is in it.
    """
    x, n, y, m = (np.asarray(v, dtype=np.float64) for v in (count, size, floor_count, floor_size))
    whole = slack * n + m
    share = np.divide(slack * n, whole, out=np.ones(np.broadcast(n, m).shape), where=whole > 0)
    return log_binomial_tail(x, x + y, share)


def _x_log_ratio(x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
    """x log(x / y), 0 where x is 0, infinite where only y is."""
    return np.asarray(np.where(x > 0, x * (np.log(np.where(x > 0, x, 1.0)) - np.log(y)), 0.0))
