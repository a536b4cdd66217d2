"""Which requests a trace supports, and whether their ranges tile the rows and tokens. Pure numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def supported_requests(
    ids: NDArray[np.str_], ends: tuple[NDArray[np.int64], ...], available: tuple[int, ...]
) -> int:
    """Number of leading requests that have an id and whose ranges end within what is there.

    `ends` has one array [N] per kind of range (rows, tokens), `available` how many of each there are.
    """
    whole = ids != ""
    for end, there in zip(ends, available, strict=True):
        whole &= end <= there
    return len(whole) if whole.all() else int(np.argmin(whole))


def tiling_fault(start: NDArray[Any], count: NDArray[Any], total: int) -> tuple[str, int] | None:
    """What is wrong if ranges [N] do not cover `[0, total)` without gap or overlap, and at which position.

    Order does not matter; empty ranges may start anywhere inside.
    """
    start, count = start.astype(np.int64), count.astype(np.int64)
    outside = (start < 0) | (start > total) | (count > total - start)
    if outside.any():
        first = int(outside.argmax())
        return f"reaches to {int(start[first]) + int(count[first])} of {total}", first
    end = start + count
    used = np.flatnonzero(count)
    used = used[np.argsort(start[used], kind="stable")]
    expected = np.concatenate([[0], end[used]])
    actual = np.concatenate([start[used], [total]])
    wrong = np.flatnonzero(expected != actual)
    if not wrong.size:
        return None
    first = int(wrong[0])
    owner = int(used[min(first, len(used) - 1)]) if used.size else 0
    if actual[first] < expected[first]:
        return f"starts at {actual[first]}, inside the range of another request", owner
    return f"leaves [{expected[first]}, {actual[first]}) to no request", owner


def first_duplicate(ids: NDArray[np.str_], samples: NDArray[np.int32]) -> int | None:
    """Position of the first request whose (id, sample) occurred before; None if all differ."""
    seen: set[tuple[str, int]] = set()
    for position, key in enumerate(zip(ids.tolist(), samples.tolist(), strict=True)):
        if key in seen:
            return position
        seen.add(key)
    return None
