"""A run of rows that follows a filler pattern."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class FillerRun:
    """Rows [first, last) of the file that follow `pattern` in the layers at `places` of axis M."""

    first: int
    last: int
    pattern: str
    places: NDArray[np.int64]
    chance_log10: float
